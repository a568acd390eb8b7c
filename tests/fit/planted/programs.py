"""Steps of plain JAX with a fault each, as the StableHLO that `migrate fit` is given; and two without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

MESH = AbstractMesh((4,), ("data",))
SIDE = 2560
RATE = 0.1


def lowered(function: Any, *args: Any, **jit: Any) -> str:
    """What a user writes into a file."""
    traced = jax.jit(function, **jit).trace(*args)
    return traced.lower(lowering_platforms=("tpu",)).as_text(debug_info=True)


def matrix(*shape: int, dtype: Any = jnp.float32, cut: Any = None) -> Any:
    sharding = None if cut is None else NamedSharding(MESH, PartitionSpec(*cut))
    return jax.ShapeDtypeStruct(shape or (SIDE, SIDE), dtype, sharding=sharding)


def loss(weight: Any, x: Any) -> Any:
    return jnp.mean(jnp.square(x @ weight))


def sgd(weight: Any, x: Any) -> Any:
    return weight - RATE * jax.grad(loss)(weight, x)  # FAULT: not donated


def momentum(weight: Any, speed: Any, x: Any) -> Any:
    speed = 0.9 * speed + jax.grad(loss)(weight, x)  # FAULT: unsharded state
    return weight - RATE * speed, speed


def wide_loss() -> str:
    def step(weight: Any, x: Any) -> Any:
        def wide(weight: Any) -> Any:
            y = (x @ weight).astype(jnp.float64)  # FAULT: wide loss
            return jnp.mean(jnp.square(y))

        return weight - RATE * jax.grad(wide)(weight)

    with jax.enable_x64(True):
        return lowered(step, matrix(256, 256), matrix(256, 256), donate_argnums=0)


def complex_values() -> str:
    def spectrum(x: Any) -> Any:
        return jnp.real(x * x)  # FAULT: complex

    with jax.enable_x64(True):
        return lowered(spectrum, matrix(64, 128, dtype=jnp.complex128))


def whole_numbers() -> str:
    def product(x: Any) -> Any:
        return x @ x  # FAULT: whole numbers

    with jax.enable_x64(True):
        return lowered(product, matrix(64, 64, dtype=jnp.int64))


def unknown_call() -> str:
    def call(x: Any) -> Any:
        y = x @ x
        return jax.ffi.ffi_call("their_cuda_kernel", matrix())(y)  # FAULT: unknown call

    return lowered(call, matrix())


def any_length() -> str:
    from jax import export

    def product(x: Any) -> Any:
        return jnp.tanh(x)  # FAULT: any length

    (length,) = export.symbolic_shape("n")
    x = jax.ShapeDtypeStruct((length, SIDE), jnp.float32)
    return export.export(jax.jit(product), platforms=("tpu",))(x).mlir_module()


def not_donated() -> str:
    return lowered(sgd, matrix(), matrix())


def unsharded_state() -> str:
    cut = ("data", None)
    return lowered(
        momentum,
        matrix(cut=cut),
        matrix(cut=()),
        matrix(SIDE, SIDE, cut=cut),
        donate_argnums=(0, 1),
    )


def captured() -> str:
    table = np.random.default_rng(0).normal(size=(512, 1024)).astype(np.float32)

    def project(x: Any) -> Any:
        return x @ table  # FAULT: captured

    return lowered(project, matrix(1024, 512))


def donated() -> str:
    return lowered(sgd, matrix(), matrix(), donate_argnums=0)


def sharded_state() -> str:
    cut = ("data", None)
    args = matrix(cut=cut), matrix(cut=cut), matrix(SIDE, SIDE, cut=cut)
    return lowered(momentum, *args, donate_argnums=(0, 1))


PROGRAMS: dict[str, Callable[[], str]] = {
    one.__name__: one
    for one in (
        *(wide_loss, complex_values, whole_numbers, unknown_call, any_length, not_donated),
        *(unsharded_state, captured, donated, sharded_state),
    )
}
