"""Capture of an nnx model's layers during a run."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from migrate.parity.dump.dump import Layer
from migrate.parity.sides.frames import caller, defined
from migrate.parity.sides.jax.capture.recorder import CalledLayer, Watcher, settings_of

Arrays = dict[tuple[Any, ...], Any]


@contextlib.contextmanager
def wrapped(
    recorder: Watcher, model: Any, weights: Mapping[str, tuple[Any, ...]]
) -> Iterator[None]:
    """Record every call of the model and its modules in this context.

    The `__call__` of their classes is replaced for that time. Modules that a transform (nnx.scan, nnx.jit,
    nnx.remat) created from the model's modules are recognized by their arrays.

    Args:
        recorder: receives the calls.
        model: the module.
        weights: all weights of the model: name → path.
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
            return {
                weight: _variable(module, known.keys[weight][len(path) :]).get_value()
                for weight in own
            }

        def take(others: Mapping[str, Any]) -> None:
            for weight, value in others.items():
                _variable(module, known.keys[weight][len(path) :]).set_value(value)

        return recorder.call(CalledLayer(name, path, describe, held, take), run, args, kwargs)

    return call


def _variable(module: Any, keys: tuple[Any, ...]) -> Any:
    """Variable at a path below a module, through lists and dicts."""
    for key in keys:
        module = (
            getattr(module, key) if isinstance(key, str) and hasattr(module, key) else module[key]
        )
    return module


class _Known:
    """Paths of modules, including modules that a transform created from the model's.

    Attributes:
        weights: path of a layer → names of the weights that it holds itself.
        keys: name of a weight → its path of keys.
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
            owner = next((candidate for candidate in owners if candidate in layers), ())
            self.weights[owner] = (*self.weights.get(owner, ()), name)

    def path(self, module: Any) -> tuple[Any, ...] | None:
        """Path of a module; None for a module that was created during its call."""
        known = self._paths.get(id(module))
        return known if known is not None else self._find(module)

    def _find(self, module: Any) -> tuple[Any, ...] | None:
        from flax import nnx

        arrays = _arrays(module)
        alike = [
            (path, _arrays(mine)) for path, mine in self._modules if type(mine) is type(module)
        ]
        alike = [(path, mine) for path, mine in alike if mine and mine.keys() == arrays.keys()]
        # Identical arrays before equal arrays: two new LayerNorms have equal arrays.
        for same in (_identical, _equal):
            for path, mine in alike:
                if same(mine, arrays):
                    # Kept alive, or another object could get its id.
                    self._alive.append(module)
                    for inner, inner_module in nnx.iter_modules(module):
                        self._paths[id(inner_module)] = (*path, *inner)
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
    return all(mine[path] is array for path, array in theirs.items())


def _equal(mine: Arrays, theirs: Arrays) -> bool:
    """Whether these are equal arrays, or entries of them along an axis (a scan's)."""
    import jax

    if any(isinstance(array, jax.core.Tracer) for array in theirs.values()):
        return all(_fits(mine[path].shape, array.shape) for path, array in theirs.items())
    # Compare the largest array: small arrays (biases, scales) are alike in many modules.
    path = max(mine, key=lambda name: mine[name].size)
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
    """Classes of the modules, with every class whose own `__call__` may run."""
    from flax import nnx

    classes: dict[type, None] = {}
    for _, module in nnx.iter_modules(model):
        classes |= dict.fromkeys(_calling(module))
    return list(classes)


def _calling(module: Any) -> list[type]:
    from flax import nnx

    classes = (cls for cls in type(module).__mro__ if issubclass(cls, nnx.Module))
    return [cls for cls in classes if "__call__" in cls.__dict__]


def _is_layer(module: Any) -> bool:
    """Whether a module is called, and is no mere list of modules."""
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
