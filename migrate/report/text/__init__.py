"""Results as tables and lines for people, and as plain values for JSON; a file for each command."""
