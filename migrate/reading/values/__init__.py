"""Values of a script: devices, tensors on them, arguments of calls."""
