"""What runs in ours: the recordings of two runs, held against each other."""
