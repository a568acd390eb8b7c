"""TPU matmul precision on a CPU: what a matrix unit that takes bfloat16 makes of a float32 model.

    with torch_mode.emulated("default") as seen:      # a torch module
        model(x)
    jax_interpreter.emulated(function, "default")(x)  # a JAX function

XLA on the CPU accepts every precision and computes plain float32. Here each product is computed in one,
three or six passes of bfloat16 operands (`passes`). What the vector unit computes stays in float32.
Operations with products that were not emulated are listed.
"""
