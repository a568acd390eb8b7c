"""Watch what torch_tpu compiles and runs while a script trains."""
