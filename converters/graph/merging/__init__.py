"""Both modes of a model, evaluation and training, as one graph."""
