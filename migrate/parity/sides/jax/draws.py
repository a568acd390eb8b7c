"""Draws of a JAX model, taken from the draws of the comparison (`ground.draws`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from migrate.parity.ground.draws import Draws, order, whole


@contextlib.contextmanager
def drawn(draws: Draws) -> Iterator[None]:
    """Make the functions of `jax.random` that a port calls return numbers of the comparison."""
    import jax

    functions = _functions(draws)
    before = {name: getattr(jax.random, name) for name in functions}
    for name, function in functions.items():
        setattr(jax.random, name, function)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(jax.random, name, function)


def _functions(draws: Draws) -> dict[str, Callable[..., Any]]:
    """Functions by name, with the parameters of `jax.random`."""
    import jax.numpy as jnp

    def cast(array: Any, dtype: Any) -> Any:
        return jnp.asarray(array, jnp.result_type(float) if dtype is None else dtype)

    def normal(key: Any, shape: Any = (), dtype: Any = None, **_: Any) -> Any:
        return cast(draws.next("normal", shape), dtype)

    def uniform(
        key: Any, shape: Any = (), dtype: Any = None, minval: Any = 0.0, maxval: Any = 1.0, **_: Any
    ) -> Any:
        return minval + (maxval - minval) * cast(draws.next("uniform", shape), dtype)

    def exponential(key: Any, shape: Any = (), dtype: Any = None, **_: Any) -> Any:
        return cast(draws.next("exponential", shape), dtype)

    def gumbel(key: Any, shape: Any = (), dtype: Any = None, **_: Any) -> Any:
        return cast(draws.next("gumbel", shape), dtype)

    def bernoulli(key: Any, p: Any = 0.5, shape: Any = None, **_: Any) -> Any:
        sides = np.shape(p) if shape is None else shape
        # As `floor(p + uniform)`, which models of torch write too.
        return jnp.asarray(draws.next("uniform", sides)) >= 1 - p

    def randint(key: Any, shape: Any, minval: Any, maxval: Any, dtype: Any = None, **_: Any) -> Any:
        numbers = whole(draws.next("integers", shape), minval, maxval)
        return jnp.asarray(numbers, jnp.result_type(int) if dtype is None else dtype)

    def permutation(key: Any, x: Any, axis: int = 0, **_: Any) -> Any:
        if np.ndim(x):
            return jnp.take(x, order(draws.next("permutation", (x.shape[axis],))), axis)
        return jnp.asarray(order(draws.next("permutation", (int(x),))))

    return {
        "normal": normal,
        "uniform": uniform,
        "exponential": exponential,
        "gumbel": gumbel,
        "bernoulli": bernoulli,
        "randint": randint,
        "permutation": permutation,
    }
