"""Inputs that are drawn: floating values from several distributions, one for each input in turn.

An error that one distribution hides another shows: rounding of products cancels in zero-mean values and not
in positive ones, a saturated softmax hides a wrong scale, exact zeros hide a wrong bias, and variances by
E[x²] - E[x]² lose digits only beside an offset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from migrate.parity.inputs.spec import Shaped

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


def _normal(rng: np.random.Generator, shape: Shape) -> Array:
    return rng.standard_normal(shape)


def _uniform(rng: np.random.Generator, shape: Shape) -> Array:
    return rng.uniform(-1, 1, shape)


def _large(rng: np.random.Generator, shape: Shape) -> Array:
    return 10 * rng.standard_normal(shape)


def _sparse(rng: np.random.Generator, shape: Shape) -> Array:
    return rng.standard_normal(shape) * (rng.random(shape) < 0.25)


def _positive(rng: np.random.Generator, shape: Shape) -> Array:
    return np.abs(rng.standard_normal(shape))


def _offset(rng: np.random.Generator, shape: Shape) -> Array:
    return rng.standard_normal(shape) + 3


DISTRIBUTIONS: tuple[tuple[str, Callable[[np.random.Generator, Shape], Array]], ...] = (
    ("standard normal", _normal),
    ("uniform in [-1, 1)", _uniform),
    ("normal, sd 10", _large),
    ("normal, three quarters exact zeros", _sparse),
    ("|normal|: positive only", _positive),
    ("normal + 3", _offset),
)


def draw(specs: Sequence[Shaped], number: int, seed: int) -> dict[str, Array]:
    """The arguments of one input.

    Args:
        specs: what to draw.
        number: of the input; its floating arguments are of distribution `number % 6`.
        seed: with the input's number and the argument's position it decides every value.
    """
    made = {}
    for position, spec in enumerate(specs):
        rng = np.random.default_rng([seed, number, position])
        made[spec.name] = _draw(spec, rng, number)
    return made


def describe(specs: Sequence[Shaped], count: int) -> list[str]:
    """What is drawn, a line each, for the report."""
    lines = []
    for spec in specs:
        head = f"{spec.name}: {spec.dtype}{list(spec.shape)}"
        if spec.fill:
            lines.append(f"{head}, {spec.fill}")
        elif spec.bound is not None:
            lines.append(f"{head}, uniform in 0 to {spec.bound - 1}")
        elif spec.dtype == "bool":
            lines.append(f"{head}, true up to a length of each row; all true in input 0")
        else:
            names = [
                f"{name} ({', '.join(map(str, range(first, count, len(DISTRIBUTIONS))))})"
                for first, (name, _) in enumerate(DISTRIBUTIONS[:count])
            ]
            lines.append(f"{head}, by input: {'; '.join(names)}")
    return lines


def _draw(spec: Shaped, rng: np.random.Generator, number: int) -> Array:
    dtype = np.float32 if "float" in spec.dtype else np.dtype(spec.dtype)
    if spec.fill:
        return np.full(spec.shape, 1 if spec.fill == "ones" else 0, dtype)
    if spec.bound is not None:
        return rng.integers(0, spec.bound, spec.shape).astype(dtype)
    if spec.dtype == "bool":
        return _lengths(rng, spec.shape, full=number == 0)
    _, distribution = DISTRIBUTIONS[number % len(DISTRIBUTIONS)]
    values = np.asarray(distribution(rng, spec.shape)).astype(np.float32)
    if spec.dtype in ("bfloat16", "float16"):
        return rounded(values, spec.dtype)
    return values


def _lengths(rng: np.random.Generator, shape: Shape, *, full: bool) -> Array:
    """True for the first entries of each row of the last axis, at least one."""
    if not shape:
        return np.asarray(full or bool(rng.integers(2)))
    longest = shape[-1]
    lengths = np.full(shape[:-1], longest) if full else rng.integers(1, longest + 1, shape[:-1])
    return np.arange(longest) < np.asarray(lengths)[..., None]


def rounded(values: Array, dtype: str) -> Array:
    """The values that the dtype can hold, as float32."""
    from converters.checkpoint.dtypes import numpy_dtype

    return values.astype(numpy_dtype(dtype, "the inputs")).astype(np.float32)
