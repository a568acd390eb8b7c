"""Source for ports: initializers that Flax does not have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from safetensors import safe_open


def torch_uniform(key: Any, shape: Sequence[int], dtype: Any) -> jax.Array:
    """torch's default for the weight of a Linear or a Conv: uniform within 1 / sqrt(fan_in)."""
    return nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")(key, shape, dtype)


def uniform_between(low: float, high: float) -> nn.initializers.Initializer:
    """Draws between two numbers."""
    return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, low, high)


def uniform_within(bound: float) -> nn.initializers.Initializer:
    """Draws between -bound and bound."""
    return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -bound, bound)


def normal_around(mean: float, std: float) -> nn.initializers.Initializer:
    """Normal draws with a mean."""
    return lambda key, shape, dtype: mean + std * jax.random.normal(key, shape, dtype)


def trunc_normal(
    std: float, mean: float = 0.0, low: float = -2.0, high: float = 2.0
) -> nn.initializers.Initializer:
    """torch's trunc_normal_: normal draws between `low` and `high`, whatever `std` is."""
    draw = nn.initializers.truncated_normal(std, None, (low - mean) / std, (high - mean) / std)
    return lambda key, shape, dtype: mean + draw(key, shape, dtype)


def scaled_by(
    initializer: nn.initializers.Initializer, factor: float
) -> nn.initializers.Initializer:
    """An initializer whose draws are multiplied by a number."""
    return lambda key, shape, dtype: factor * initializer(key, shape, dtype)


def with_slices(
    initializer: nn.initializers.Initializer,
    *slices: tuple[int, int, nn.initializers.Initializer],
) -> nn.initializers.Initializer:
    """An initializer with others for some of the first axis: (start, stop, initializer)."""

    def init(key: Any, shape: Sequence[int], dtype: Any) -> jax.Array:
        values = initializer(key, shape, dtype)
        for number, (start, stop, inner) in enumerate(slices):
            part = inner(jax.random.fold_in(key, number), (stop - start, *shape[1:]), dtype)
            values = values.at[start:stop].set(part)
        return values

    return init


def zero_row(initializer: nn.initializers.Initializer, row: int) -> nn.initializers.Initializer:
    """An initializer of an embedding, with zeros for the token that pads."""
    return lambda key, shape, dtype: initializer(key, shape, dtype).at[row].set(0)


def stored(path: Sequence[str], name: str, shape: Sequence[int]) -> jax.Array:
    """An array that the original computes when it is made; initial.safetensors has it for this size."""
    with safe_open(Path(__file__).with_name("initial.safetensors"), framework="numpy") as file:
        keys = set(file.keys())
        steps = [*path, name]
        # The model may be part of another one: then the path begins with that one's.
        ends = ["/".join(steps[start:]) for start in range(len(steps))]
        key = next((end for end in ends if end in keys), None)
        if key is None:
            raise ValueError(f"{'/'.join(steps)}: initial.safetensors lacks it")
        array = file.get_tensor(key)
    if array.shape != tuple(shape):
        raise ValueError(
            f"{key}: has {array.shape} in initial.safetensors; {tuple(shape)} is needed"
        )
    return jnp.asarray(array)
