"""Run the original and the rewritten script, and compare what they compute step by step."""
