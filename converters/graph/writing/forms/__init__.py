"""Forms of source that are found after a class is written: lists, loops, convolutions."""
