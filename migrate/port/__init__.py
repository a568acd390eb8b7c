"""`migrate port`: a torch module as Flax source, with its weights and the proof that it computes the same."""
