"""How the original initialises its parameters and buffers: watched while its factory runs."""
