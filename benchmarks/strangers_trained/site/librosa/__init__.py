"""A stand-in for librosa: what hifi-gan takes of it."""
