"""What a JAX function computes that depends on the device: approximate top-k.

`jax.lax.approx_max_k` is exact on a CPU whatever its recall target, and approximate on a TPU: no run on a CPU
shows it, but the function's jaxpr does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ApproximateTopK:
    """An approximate top-k in a function.

    Attributes:
        line: `file.py:line` that asks for it; "" if that is not known.
        recall_target: the share of the true top-k that the TPU is to find.
        k: how many.
        shape: of the operand.
        is_max: the largest, or the smallest.
    """

    line: str
    recall_target: float
    k: int
    shape: tuple[int, ...]
    is_max: bool = True


def approximate_top_k(
    function: Callable[..., Any], *args: Any, **kwargs: Any
) -> list[ApproximateTopK]:
    """The approximate top-k's that a function would run, also those inside of loops, jit and remat."""
    import jax

    closed = jax.make_jaxpr(function)(*args, **kwargs)
    return [
        ApproximateTopK(
            _line(equation),
            float(equation.params["recall_target"]),
            int(equation.params["k"]),
            tuple(equation.invars[0].aval.shape),
            bool(equation.params["is_max_k"]),
        )
        for equation in _equations(closed.jaxpr)
        if equation.primitive.name == "approx_top_k"
    ]


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in _jaxprs(value):
                yield from _equations(inner)


def _jaxprs(value: Any) -> Iterator[Any]:
    from jax.extend import core

    if isinstance(value, core.ClosedJaxpr):
        yield value.jaxpr
    elif isinstance(value, core.Jaxpr):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _jaxprs(one)


def _line(equation: Any) -> str:
    """The innermost line of the user's own code, as JAX kept it with the equation."""
    traceback = equation.source_info.traceback
    folders = _own_folders()
    for frame in traceback.frames if traceback is not None else ():
        file = Path(frame.file_name)
        if not frame.file_name.startswith("<") and not any(map(file.is_relative_to, folders)):
            inside = file.is_relative_to(Path.cwd())
            return f"{file.relative_to(Path.cwd()) if inside else file}:{frame.line_num}"
    return ""


def _own_folders() -> list[Path]:
    """Where JAX, Flax and this package are: their lines are never the user's."""
    import flax
    import jax

    import migrate

    packages: tuple[Any, ...] = (jax, flax, migrate)
    return [Path(one.__file__).parent for one in packages]
