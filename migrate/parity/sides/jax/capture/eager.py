"""Run a JAX model one operation at a time, so that all values inside it can be observed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from migrate.parity.ground.settings import Precision


@contextlib.contextmanager
def eager(emulated: Precision | None) -> Iterator[None]:
    """Run without compilation or rematerialization, and with loops in Python.

    The bodies of `lax.scan` (nn.scan, nn.RNN, nnx.scan), of jit and of remat then run on values, once for
    each step. Only vmap passes tracers.

    Args:
        emulated: emulated precision of matmuls and convolutions, if there is one.
    """
    import jax

    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.disable_jit())
        for name in ("checkpoint", "remat"):
            stack.enter_context(_replaced(jax, name, _not_rematerialized))
        stack.enter_context(_decorated_not_rematerialized())
        if emulated is not None:
            for primitive in (jax.lax.dot_general_p, jax.lax.conv_general_dilated_p):
                emulation = _emulation(primitive, emulated)
                stack.enter_context(_replaced(primitive, "impl", emulation))
        yield


def _not_rematerialized(function: Callable[..., Any] | None = None, **_: Any) -> Any:
    """Replace jax.checkpoint by the function itself."""
    return (lambda inner: inner) if function is None else function


@contextlib.contextmanager
def _decorated_not_rematerialized() -> Iterator[None]:
    """Replace jax.checkpoint also where it decorated a function earlier, in the body of a class.

    Such a function uses names of JAX's own modules. If these modules differ from what this code expects,
    nothing is replaced, and the layers inside are noted as not captured.
    """
    from jax._src import ad_checkpoint, core

    trace = getattr(ad_checkpoint, "_trace_to_jaxpr", None)
    if trace is None or not hasattr(core, "trace_state_clean"):
        yield
        return

    def kept(function: Any, in_tree: Any, *rest: Any) -> Any:
        if not core.trace_state_clean():  # tracers: within vmap, or a scan that tries its body
            return trace(function, in_tree, *rest)
        body = _Body(function, in_tree)
        return body, (), body

    run = ad_checkpoint.remat_p.impl

    def run_body(*arrays: Any, jaxpr: Any, **params: Any) -> Any:
        return (
            jaxpr.run(arrays) if isinstance(jaxpr, _Body) else run(*arrays, jaxpr=jaxpr, **params)
        )

    with (
        _replaced(ad_checkpoint, "_trace_to_jaxpr", kept),
        _replaced(ad_checkpoint.remat_p, "impl", run_body),
    ):
        yield


class _Body:
    """Body to rematerialize; it takes the place of its jaxpr, and of the structure of its results."""

    is_high = False  # JAX checks this of a jaxpr before running it

    def __init__(self, function: Callable[..., Any], in_tree: Any) -> None:
        self._function, self._in_tree = function, in_tree
        self._made: Any = None

    def run(self, arrays: tuple[Any, ...]) -> list[Any]:
        """Run it unchanged; its result is kept for `unflatten`."""
        args, kwargs = self._in_tree.unflatten(arrays)
        self._made = self._function(*args, **kwargs)
        return []

    def unflatten(self, leaves: Any) -> Any:
        """Result of the run."""
        del leaves
        return self._made


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _emulation(primitive: Any, precision: Precision) -> Any:
    """Emulate a primitive's precision on values; compiled once for each set of its parameters."""
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
