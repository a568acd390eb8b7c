"""Compare the written program with the recorded run of the script."""
