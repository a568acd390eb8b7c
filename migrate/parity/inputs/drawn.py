"""Drawn inputs: floating values from several distributions, one for each input in turn.

One distribution shows an error that another hides. Rounding of products cancels in zero-mean values, but not
in positive values. A saturated softmax hides a wrong scale, and exact zeros hide a wrong bias. Variances by
E[x²] - E[x]² lose digits only with an offset.
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
    """Draw the arguments of one input.

    Args:
        specs: what to draw.
        number: number of the input; its floating arguments have distribution `number % 6`.
        seed: seed that decides every value, with the input's number and the argument's position.
    """
    arguments = {}
    for position, spec in enumerate(specs):
        rng = np.random.default_rng([seed, number, position])
        arguments[spec.name] = _draw(spec, rng, number)
    return arguments


def describe(specs: Sequence[Shaped], count: int) -> list[str]:
    """Describe the drawn arguments for the report, one a line."""
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
    """Round to values of the dtype, kept as float32."""
    from converters.checkpoint.dtypes import numpy_dtype

    return values.astype(numpy_dtype(dtype, "the inputs")).astype(np.float32)
