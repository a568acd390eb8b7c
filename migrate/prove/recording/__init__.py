"""Recording files, which pass from the user's process to ours, and their contents."""
