"""What is said of a reference that is not float64 throughout: its first words."""

REFERENCE = "the reference runs in float32"
