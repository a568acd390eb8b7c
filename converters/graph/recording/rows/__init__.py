"""Recording of rows chosen by a mask."""
