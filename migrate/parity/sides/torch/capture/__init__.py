"""How the layers of a torch model are captured as it runs."""
