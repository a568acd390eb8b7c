"""Layers of a linen model as it runs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from migrate.parity.dump.dump import Layer
from migrate.parity.sides.frames import caller, defined
from migrate.parity.sides.jax.capture.recorder import Recorder, Seen, settings_of

# Methods that compute as a layer does; others (`setup`, wrapped lambdas of lifted transforms) are passed
# through, and so is what a user's own method does between the layers that it calls.
_METHODS = ("__call__", "attend")
_NO_SETTINGS = ("parent", "name")


@contextlib.contextmanager
def intercepted(recorder: Recorder, weights: Mapping[str, tuple[str, ...]]) -> Iterator[None]:
    """Record every call of a module in this context.

    Args:
        recorder: what writes them.
        weights: all of the model: name → the keys on the way to it, the collection's first.
    """
    from flax import linen

    names = _by_module(weights)

    def intercept(
        run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], context: Any
    ) -> Any:
        method = context.method_name
        if method not in _METHODS:
            return run(*args, **kwargs)
        module, called = context.module, caller()
        path = module.path
        name = ".".join(path if method == "__call__" else (*path, method))

        def describe(parent: str | None) -> Layer:
            return _layer(module, name, method, names.get(tuple(path), ()), called, parent)

        return recorder.call(Seen(name, (tuple(path), method), describe), run, args, kwargs)

    with linen.intercept_methods(intercept):
        yield


def _layer(
    module: Any, name: str, method: str, weights: tuple[str, ...], called: str, parent: str | None
) -> Layer:
    kind = type(module).__name__
    values = {
        field.name: getattr(module, field.name, None)
        for field in dataclasses.fields(module)
        if field.name not in _NO_SETTINGS
    }
    return Layer(
        name,
        kind if method == "__call__" else f"{kind}.{method}",
        weights,
        settings_of(values),
        defined(getattr(type(module), method)),
        called,
        parent,
    )


def _by_module(weights: Mapping[str, tuple[str, ...]]) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Path of a module → the weights that lie right in it, of all collections."""
    found: dict[tuple[str, ...], tuple[str, ...]] = {}
    for name, keys in weights.items():
        path = keys[1:-1]
        found[path] = (*found.get(path, ()), name)
    return found
