"""A port in bfloat16 against its original in bfloat16: the error, and the dtype of every product."""
