"""What passes from the one to the other: its files, and what is in them."""
