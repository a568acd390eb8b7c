"""Layers of an nnx model as it runs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from migrate.parity.dump.dump import Layer
from migrate.parity.sides.frames import caller, defined
from migrate.parity.sides.jax.capture.recorder import Seen, Watcher, settings_of

Arrays = dict[tuple[Any, ...], Any]


@contextlib.contextmanager
def wrapped(
    recorder: Watcher, model: Any, weights: Mapping[str, tuple[Any, ...]]
) -> Iterator[None]:
    """Record every call of the model and the modules in it while in this context.

    The `__call__` of their classes is replaced for that time. Modules that a transform (nnx.scan, nnx.jit,
    nnx.remat) made anew from the model's are known by their arrays.

    Args:
        recorder: what writes the calls.
        model: the module.
        weights: all of the model's: name → path.
    """
    known = _Known(model, weights)
    replaced: list[tuple[type, Callable[..., Any]]] = []
    for cls in _classes(model):
        original = cls.__dict__["__call__"]
        replaced.append((cls, original))
        _set_call(cls, _recording(original, recorder, known))
    try:
        yield
    finally:
        for cls, original in replaced:
            _set_call(cls, original)


def _set_call(cls: type, function: Callable[..., Any]) -> None:
    setattr(cls, "__call__", function)  # noqa: B010 (mypy forbids the assignment)


def _recording(
    original: Callable[..., Any], recorder: Watcher, known: _Known
) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        run = functools.partial(original, module)
        path = known.path(module)
        if path is None:
            return run(*args, **kwargs)
        called, name = caller(), ".".join(map(str, path))

        def describe(parent: str | None) -> Layer:
            return _layer(module, name, known.weights.get(path, ()), called, parent)

        def held() -> Mapping[str, Any]:
            own = known.weights.get(path, ())
            return {one: _variable(module, known.keys[one][len(path) :]).get_value() for one in own}

        def take(others: Mapping[str, Any]) -> None:
            for one, value in others.items():
                _variable(module, known.keys[one][len(path) :]).set_value(value)

        return recorder.call(Seen(name, path, describe, held, take), run, args, kwargs)

    return call


def _variable(module: Any, keys: tuple[Any, ...]) -> Any:
    """The variable at a path below a module, through lists and dicts."""
    for key in keys:
        module = (
            getattr(module, key) if isinstance(key, str) and hasattr(module, key) else module[key]
        )
    return module


class _Known:
    """The path of each module, also of those that a transform made from the model's.

    Attributes:
        weights: path of a layer → names of the weights that it holds itself.
        keys: name of a weight → the keys on the way to it.
    """

    def __init__(self, model: Any, weights: Mapping[str, tuple[Any, ...]]) -> None:
        from flax import nnx

        self._model = model
        self.keys = weights
        self._paths: dict[int, tuple[Any, ...]] = {}
        self._alive: list[Any] = []
        self._modules = [(tuple(path), module) for path, module in nnx.iter_modules(model)]
        for path, module in self._modules:
            self._paths.setdefault(id(module), path)
        layers = {path for path, module in self._modules if _is_layer(module)}
        self.weights: dict[tuple[Any, ...], tuple[str, ...]] = {}
        for name, keys in weights.items():
            # Lists and dicts of parameters belong to the layer that has them.
            owners = (keys[:length] for length in range(len(keys) - 1, -1, -1))
            owner = next((one for one in owners if one in layers), ())
            self.weights[owner] = (*self.weights.get(owner, ()), name)

    def path(self, module: Any) -> tuple[Any, ...] | None:
        """None: it is none of the model's, a module that was made in its call."""
        found = self._paths.get(id(module))
        return found if found is not None else self._find(module)

    def _find(self, module: Any) -> tuple[Any, ...] | None:
        from flax import nnx

        arrays = _arrays(module)
        alike = [
            (path, _arrays(mine)) for path, mine in self._modules if type(mine) is type(module)
        ]
        alike = [(path, mine) for path, mine in alike if mine and mine.keys() == arrays.keys()]
        # The very arrays before equal ones: two new LayerNorms have the same.
        for same in (_identical, _equal):
            for path, mine in alike:
                if same(mine, arrays):
                    # Held, lest another object gets its id.
                    self._alive.append(module)
                    for inner, one in nnx.iter_modules(module):
                        self._paths[id(one)] = (*path, *inner)
                    return path
        return None


def _arrays(module: Any) -> Arrays:
    from flax import nnx

    return {
        tuple(path): variable.get_value()
        for path, variable in nnx.to_flat_state(nnx.state(module))
        if isinstance(variable, nnx.Variable) and not isinstance(variable, nnx.RngState)
    }


def _identical(mine: Arrays, theirs: Arrays) -> bool:
    return all(mine[path] is one for path, one in theirs.items())


def _equal(mine: Arrays, theirs: Arrays) -> bool:
    """Whether these are equal arrays, or one entry of each along an axis (a scan's)."""
    import jax

    if any(isinstance(one, jax.core.Tracer) for one in theirs.values()):
        return all(_fits(mine[path].shape, one.shape) for path, one in theirs.items())
    # By the largest: small ones (biases, scales) are alike in many modules.
    path = max(mine, key=lambda one: mine[one].size)
    return _is_part(np.asarray(mine[path]), np.asarray(theirs[path]))


def _fits(whole: tuple[int, ...], part: tuple[int, ...]) -> bool:
    return whole == part or part in [whole[:axis] + whole[axis + 1 :] for axis in range(len(whole))]


def _is_part(whole: np.ndarray[Any, Any], part: np.ndarray[Any, Any]) -> bool:
    if whole.shape == part.shape:
        return bool(np.array_equal(whole, part))
    return any(
        np.array_equal(np.take(whole, index, axis), part)
        for axis in range(whole.ndim)
        if whole.shape[:axis] + whole.shape[axis + 1 :] == part.shape
        for index in range(whole.shape[axis])
    )


def _classes(model: Any) -> list[type]:
    """Of the modules: every class whose own `__call__` may run."""
    from flax import nnx

    found: dict[type, None] = {}
    for _, module in nnx.iter_modules(model):
        found |= dict.fromkeys(_calling(module))
    return list(found)


def _calling(module: Any) -> list[type]:
    from flax import nnx

    classes = (cls for cls in type(module).__mro__ if issubclass(cls, nnx.Module))
    return [cls for cls in classes if "__call__" in cls.__dict__]


def _is_layer(module: Any) -> bool:
    """Whether it is called, and no mere list of modules."""
    return bool(_calling(module))


def _layer(
    module: Any, name: str, weights: tuple[str, ...], called: str, parent: str | None
) -> Layer:
    from flax import nnx

    plain = {
        key: value
        for key, value in vars(module).items()
        if not key.startswith("_") and not isinstance(value, nnx.Variable | nnx.Module)
    }
    return Layer(
        name,
        type(module).__name__,
        weights,
        settings_of(plain),
        defined(type(module).__call__),
        called,
        parent,
    )
