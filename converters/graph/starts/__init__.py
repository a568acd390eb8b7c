"""Initial values of the original's parameters and buffers, watched while its factory runs."""
