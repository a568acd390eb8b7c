"""Files of the written program."""
