"""Capture of a linen model's layers during a run."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from migrate.parity.dump.dump import Layer
from migrate.parity.sides.frames import caller, defined
from migrate.parity.sides.jax.capture.recorder import CalledLayer, Watcher, settings_of

# Methods that compute like a layer. Other methods (`setup`, wrapped lambdas of lifted transforms) are passed
# through, and so is a user's own method between the layers that it calls.
_METHODS = ("__call__", "attend")
_NO_SETTINGS = ("parent", "name")


@contextlib.contextmanager
def intercepted(
    recorder: Watcher,
    weights: Mapping[str, tuple[str, ...]],
    stacks: Mapping[str, tuple[str, ...]] = {},
) -> Iterator[None]:
    """Record every call of a module in this context.

    Args:
        recorder: receives the calls.
        weights: all weights of the model: name → its path of keys, the collection first.
        stacks: names of stacked weights → the weights of the layers.
    """
    from flax import linen

    taken: dict[tuple[str, ...], Any] = {}

    names = _by_module(weights)
    # For modules that others apply with weights they created (WeightNorm), whose paths begin anew.
    above: list[tuple[str, ...]] = []

    def intercept(
        run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], context: Any
    ) -> Any:
        method = context.method_name
        if method not in _METHODS:
            return run(*args, **kwargs)
        module, called = context.module, caller()
        apart = _stands_apart(module, recorder.inside)
        if apart:
            assert recorder.inside is not None
            above.append((recorder.inside.name, type(module).__name__))
        path = (*above[-1], *module.path) if above else tuple(module.path)
        name = ".".join(path if method == "__call__" else (*path, method))

        def describe(parent: str | None) -> Layer:
            own = names.get(path, ())
            layer = _layer(module, name, method, own, called, parent)
            stacked = {weight: stacks[weight] for weight in own if weight in stacks}
            return dataclasses.replace(layer, stacks=stacked)

        def held() -> Mapping[str, Any]:
            own = names.get(path, ())
            return {weight: _value(module.scope, weights[weight]) for weight in own}

        def take(others: Mapping[str, Any]) -> None:
            module.scope.reservations.clear()  # it may run again
            for weight, value in others.items():
                _exchange(
                    module, taken.get(weights[weight], _value(module.scope, weights[weight])), value
                )
                taken[weights[weight]] = value

        seen = CalledLayer(name, (path, method, type(module)), describe, held, take)
        try:
            return recorder.call(seen, run, args, kwargs)
        finally:
            if apart:
                above.pop()

    with linen.intercept_methods(intercept), _read_first(taken):
        yield


def _exchange(module: Any, old: Any, new: Any) -> None:
    """Exchange a parameter that `setup` keeps as an attribute, and read before the call."""
    for name, kept in list(vars(module).items()):
        if kept is old and old is not None:
            object.__setattr__(module, name, new)


def _value(scope: Any, keys: tuple[str, ...]) -> Any:
    from flax.core import meta

    return meta.unbox(scope.get_variable(keys[0], keys[-1]))


@contextlib.contextmanager
def _read_first(taken: Mapping[tuple[str, ...], Any]) -> Iterator[None]:
    """Return the replacement to every reader of a variable, by its path of keys."""
    from flax.core.scope import Scope

    original = Scope.get_variable

    def get_variable(scope: Any, collection: str, name: str, *args: Any, **kwargs: Any) -> Any:
        replacement = taken.get((collection, *scope.path, name)) if taken else None
        return (
            original(scope, collection, name, *args, **kwargs)
            if replacement is None
            else replacement
        )

    setattr(Scope, "get_variable", get_variable)  # noqa: B010
    try:
        yield
    finally:
        setattr(Scope, "get_variable", original)  # noqa: B010


def _stands_apart(module: Any, inside: CalledLayer | None) -> bool:
    """Whether a module is a model of its own that a layer applies, not the running model."""
    return not module.path and inside is not None and inside.key[2] is not type(module)


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
    """Path of a module → its own weights, of all collections."""
    by_path: dict[tuple[str, ...], tuple[str, ...]] = {}
    for name, keys in weights.items():
        path = keys[1:-1]
        by_path[path] = (*by_path.get(path, ()), name)
    return by_path
