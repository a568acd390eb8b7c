"""Runs a JAX model one operation at a time, so that what is inside of it has values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from migrate.parity.sides.settings import Precision


@contextlib.contextmanager
def eager(emulated: Precision | None) -> Iterator[None]:
    """In this context nothing is compiled or rematerialised, and loops run in Python.

    So the body of `lax.scan` (nn.scan, nn.RNN, nnx.scan), of jit and of remat runs on values, once for each
    step. Only vmap shows stand-ins.

    Args:
        emulated: the precision of matmuls and convolutions that is emulated, if one is.
    """
    import jax

    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.disable_jit())
        for name in ("checkpoint", "remat"):
            stack.enter_context(_replaced(jax, name, _not_rematerialised))
        if emulated is not None:
            for primitive in (jax.lax.dot_general_p, jax.lax.conv_general_dilated_p):
                emulation = _emulation(primitive, emulated)
                stack.enter_context(_replaced(primitive, "impl", emulation))
        yield


def _not_rematerialised(function: Callable[..., Any] | None = None, **_: Any) -> Any:
    """In place of jax.checkpoint: the function itself."""
    return (lambda inner: inner) if function is None else function


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _emulation(primitive: Any, precision: Precision) -> Any:
    """The primitive on values, with its precision emulated; compiled once for each of its parameters."""
    import jax

    from migrate.parity.emulate.jax_interpreter import emulated

    compiled: dict[Hashable, Callable[..., Any]] = {}

    def apply(*arrays: Any, **params: Any) -> Any:
        key = tuple(sorted((name, repr(value)) for name, value in params.items()))
        if key not in compiled:

            def bind(*operands: Any) -> Any:
                return primitive.bind(*operands, **params)

            compiled[key] = emulated(bind, precision)
        with jax.disable_jit(False):
            return compiled[key](*arrays)

    return apply
