"""How the layers of a Flax model are captured as it runs."""
