"""Code that rules write in the native and the portable style."""
