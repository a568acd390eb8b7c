"""The original's run on the machine that it was written for, kept in a file for a proof elsewhere."""
