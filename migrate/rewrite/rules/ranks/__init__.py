"""Which replica this is, and how many there are."""
