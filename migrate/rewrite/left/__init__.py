"""What is left to do by hand: of the script, of what the rewrite has made of it, and in which order."""
