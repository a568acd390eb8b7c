"""What the values of a script are: devices, tensors on them, what a call is given."""
