"""Does a program compile for a TPU slice, does it fit, and what bounds its speed: without a TPU."""
