"""What is read of a program before it is compiled."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from migrate.compiler.hlo import place_in
from migrate.compiler.written import WrittenOperation, WrittenProgram, written_in


def of(function: Any, *args: Any) -> WrittenProgram:
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

    text = jax.jit(function).lower(*args).as_text(debug_info=True)
    context = mlir.make_ir_context()
    with context:
        return written_in(ir.Module.parse(text, context=context))


def products(found: WrittenProgram) -> list[WrittenOperation]:
    return [one for one in found.operations if one.kind == "product"]


X, W = jnp.zeros((8, 16)), jnp.zeros((16, 4))
IMAGE, KERNEL = jnp.zeros((2, 8, 8, 3)), jnp.zeros((3, 3, 3, 16))


def convolved(x: Any, w: Any) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=numbers)


@pytest.mark.parametrize(
    ("function", "args", "flops", "sides"),
    [
        (lambda x, w: x @ w, (X, W), 2 * 8 * 16 * 4, (8, 16, 4)),
        (convolved, (IMAGE, KERNEL), 2 * 2 * 6 * 6 * 16 * 27, (2, 8, 3, 16, 6)),
    ],
)
def test_a_product(function: Any, args: tuple[Any, ...], flops: int, sides: set[int]) -> None:
    found = of(function, *args)
    (one,) = products(found)
    assert (one.amount, one.sides, one.dtypes) == (flops, sides, ("f32", "f32"))
    assert not one.one_hot
    assert found.arguments == tuple(value.shape for value in args)
    (made,) = found.outputs
    assert place_in(one.where) == place_in(made) == place_in(found.uses[0]) != ""


def test_a_table_that_is_looked_up_by_a_product() -> None:
    """Through the function of its own that JAX makes of one_hot, and by hand."""
    numbers = jnp.zeros(8, jnp.int32)
    by_jax = of(lambda n, w: jax.nn.one_hot(n, 16) @ w, numbers, W)
    by_hand = of(lambda n, w: (n[:, None] == jnp.arange(16)).astype(jnp.float32) @ w, numbers, W)
    mask = of(lambda x, w: (x == 1).astype(jnp.float32) @ w, X, W)
    assert [one.one_hot for one in products(by_jax) + products(by_hand)] == [True, True]
    assert [one.one_hot for one in products(mask)] == [False]


def test_a_large_constant_has_the_line_that_takes_it() -> None:
    table = np.arange(16 * 40_000, dtype=np.float32).reshape(16, 40_000)
    found = of(lambda x: x @ table, X)
    (constant,) = (one for one in found.operations if one.kind == "constant")
    assert constant.amount == table.nbytes
    assert place_in(constant.where) == place_in(products(found)[0].where) != ""
    splat = of(lambda x: x + jnp.zeros((40_000, 8, 16)), X)
    assert not [one for one in splat.operations if one.kind == "constant"]


def test_wide_values() -> None:
    with jax.enable_x64(True):
        found = of(lambda x: x.astype(jnp.float64) * 2.0, X)
    assert {one.dtypes for one in found.operations if one.kind == "wide"} == {("f64",)}
    assert not of(lambda x: x * 2, X).operations
