"""`--try remat`: a function computed again for the gradients in pieces."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from migrate.fit.lowered.remat import in_pieces

_WIDTH, _ROWS, _BLOCKS = 16, 32, 12


def _block(weights: dict[str, Any], x: Any) -> Any:
    """A residual block: what is between two of them is an eighth of what is inside of one."""
    return x + jax.nn.gelu(x @ weights["up"]) @ weights["down"]


def _weights() -> list[dict[str, Any]]:
    keys = jax.random.split(jax.random.key(0), 2 * _BLOCKS)
    up = [0.1 * jax.random.normal(key, (_WIDTH, 4 * _WIDTH)) for key in keys[::2]]
    down = [0.1 * jax.random.normal(key, (4 * _WIDTH, _WIDTH)) for key in keys[1::2]]
    return [{"up": a, "down": b} for a, b in zip(up, down, strict=True)]


def _one_by_one(weights: Any, x: Any) -> dict[str, Any]:
    for one in weights:
        x = _block(one, x)
    return {"loss": jnp.square(x).mean()}


def _in_a_loop(weights: Any, x: Any) -> dict[str, Any]:
    stacked = jax.tree.map(lambda *each: jnp.stack(each), *weights)
    x, _ = jax.lax.scan(lambda x, one: (_block(one, x), None), jnp.tanh(x), stacked)
    return {"loss": jnp.square(x).mean()}


def _kept(function: Callable[..., Any], *args: Any) -> int:
    """Bytes that are kept for the gradients, beside the arguments."""
    pulled = jax.eval_shape(lambda *args: jax.vjp(function, *args)[1], *args)
    sizes = [math.prod(one.shape) * one.dtype.itemsize for one in jax.tree.leaves(pulled)]
    return sum(sizes) - sum(one.nbytes for one in jax.tree.leaves(args))


@pytest.mark.parametrize("function", [_one_by_one, jax.jit(_one_by_one), _in_a_loop])
@pytest.mark.long_cases("_in_a_loop", "_one_by_one1")
def test_what_goes_from_block_to_block_is_kept_and_gradients_are_the_same(
    function: Callable[..., Any],
) -> None:
    args = _weights(), jax.random.normal(jax.random.key(1), (_ROWS, _WIDTH))
    again = in_pieces(function)
    between = 4 * _ROWS * _WIDTH
    before = _kept(function, *args)
    assert before > 9 * _BLOCKS * between
    # The loop keeps what it carries in each turn, and its stacked weights, which it makes itself.
    stacked = sum(one.nbytes for one in jax.tree.leaves(args[0])) if function is _in_a_loop else 0
    assert _kept(again, *args) < (_BLOCKS + 4) * between + 2 * stacked

    def loss(one: Callable[..., Any]) -> Callable[..., Any]:
        return jax.jit(jax.grad(lambda *args: one(*args)["loss"]))

    found, wanted = loss(again)(*args), loss(function)(*args)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert jnp.allclose(a, b, rtol=1e-4, atol=1e-6)


def test_lines_are_those_of_the_function() -> None:
    args = _weights(), jnp.ones((_ROWS, _WIDTH))
    text = (
        jax.jit(lambda *args: in_pieces(_one_by_one)(*args)).lower(*args).as_text(debug_info=True)
    )
    line = _block.__code__.co_firstlineno + 2
    assert f'test_remat.py":{line}:' in text
