"""How the layers of a model are captured, a framework a module."""
