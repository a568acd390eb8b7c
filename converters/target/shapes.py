"""The arrays of a Flax model by path, without making one: `jax.eval_shape`."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from converters.checkpoint.pytree import flatten
from converters.checkpoint.reader import TensorInfo
from converters.errors import CheckpointDamagedError, TargetError
from converters.model import imported, split_call
from converters.output.arrays import open_arrays

# Inputs to try where none are given: token ids, images, vectors.
_GUESSES: tuple[tuple[tuple[int, ...], str], ...] = (
    ((1, 8), "int32"),
    ((1, 32, 32, 3), "float32"),
    ((1, 224, 224, 3), "float32"),
    ((1, 8), "float32"),
)


def target_shapes(target: Any, inputs: Any = None) -> dict[str, TensorInfo]:
    """Path → shape and dtype of every array that a Flax model has; nothing is allocated.

    Args:
        target: `pkg.mod:name` or `file.py:name` of a linen module (or a function that gives one, or
            `(module, inputs)`), of an nnx module class or a function with `rngs`, of transformers' Flax
            model; such an object itself; a pytree of shapes; or a file: a Flax checkpoint, or `.json`
            with `{path: [shape, dtype]}`.
        inputs: what linen's `init` is called with: an array or shape-dtype struct, a tuple of them or
            a dict by name, or the name of such an object or of a function that gives it; None: the
            target's own, else some that are tried.

    Raises:
        TargetError: the model cannot be built, or its inputs are not known.
    """
    if isinstance(target, str | Path):
        path = Path(target)
        if path.suffix == ".json":
            return _from_json(path)
        if path.exists():
            return dict(open_arrays(path).infos)
        target = _load(str(target))
    if isinstance(inputs, str):
        inputs = _load(inputs)
        inputs = inputs() if callable(inputs) else inputs
    return _shapes(target, inputs)


def _load(spec: str) -> Any:
    """The object of `pkg.mod:name` or `file.py:name`."""
    named, args, kwargs = split_call(spec)
    location, _, name = named.rpartition(":")
    if not location or not name:
        raise TargetError(
            f"{spec!r} names no file and no object", "write pkg.mod:name or file.py:name"
        )
    with imported(spec, location) as module:
        try:
            found = attrgetter(name)(module)
        except AttributeError:
            raise TargetError(f"{location} has no {name}", "check the name") from None
    return functools.partial(found, *args, **kwargs) if args or kwargs else found


def _shapes(target: Any, inputs: Any) -> dict[str, TensorInfo]:
    from flax import linen, nnx

    if isinstance(target, type) and issubclass(target, nnx.Module):
        return _of_nnx(target)
    if callable(target) and not isinstance(target, linen.Module | nnx.Module):
        if not isinstance(target, type) and _wants_rngs(target):
            return _of_nnx(target)
        target = _called(target)
    if isinstance(target, tuple) and len(target) == 2 and isinstance(target[0], linen.Module):
        target, own = target
        inputs = own if inputs is None else inputs
    if isinstance(target, linen.Module):
        return _of_linen(target, inputs)
    if isinstance(target, nnx.Module):
        return _named(nnx.to_pure_dict(nnx.state(target, nnx.Not(nnx.RngState))))
    if hasattr(target, "params_shape_tree"):  # transformers' FlaxPreTrainedModel
        return _named(target.params_shape_tree)
    if isinstance(target, Mapping):
        return _named(target)
    raise TargetError(
        f"the target is a {type(target).__name__}, not a Flax model",
        "name a linen or nnx module, or a function that gives one",
    )


def _of_linen(module: Any, inputs: Any) -> dict[str, TensorInfo]:
    import jax
    from flax.core import meta

    candidates: Iterable[Any] = (
        [inputs] if inputs is not None else [jax.ShapeDtypeStruct(*guess) for guess in _GUESSES]
    )
    errors: list[str] = []
    found: list[dict[str, TensorInfo]] = []
    for candidate in candidates:
        try:
            variables = _init(module, candidate)
        except Exception as error:
            errors.append(f"{type(error).__name__}: {str(error)[:100]}")
        else:
            found.append(_named(meta.unbox(variables)))
    if not found:
        raise TargetError(
            f"{type(module).__name__} cannot be initialised ({errors[-1]})",
            "give its inputs (--target-inputs file.py:name)",
        )
    if any(other != found[0] for other in found[1:]):
        raise TargetError(
            f"the shapes of {type(module).__name__} depend on its inputs",
            "give its inputs (--target-inputs file.py:name)",
        )
    return found[0]


def _init(module: Any, inputs: Any) -> Any:
    import jax

    rngs = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    if isinstance(inputs, Mapping):
        return jax.eval_shape(lambda given: module.init(rngs, **given), dict(inputs))
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    return jax.eval_shape(lambda *given: module.init(rngs, *given), *arguments)


def _of_nnx(factory: Any) -> dict[str, TensorInfo]:
    from flax import nnx

    try:
        module = nnx.eval_shape(lambda: factory(rngs=nnx.Rngs(0)))
    except Exception as error:
        raise TargetError(
            f"{getattr(factory, '__name__', factory)}(rngs=…) cannot be built "
            f"({type(error).__name__}: {str(error)[:100]})",
            "name a function of rngs that builds the module",
        ) from None
    return _named(nnx.to_pure_dict(nnx.state(module, nnx.Not(nnx.RngState))))


def _called(factory: Any) -> Any:
    try:
        return factory()
    except Exception as error:
        raise TargetError(
            f"{getattr(factory, '__name__', factory)}() cannot be built "
            f"({type(error).__name__}: {str(error)[:100]})",
            "name a function without arguments that builds the module",
        ) from None


def _wants_rngs(function: Any) -> bool:
    import inspect

    try:
        return "rngs" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _named(tree: Any) -> dict[str, TensorInfo]:
    return {
        path: TensorInfo(tuple(leaf.shape), np.dtype(leaf.dtype).name)
        for path, leaf in flatten(tree).items()
    }


def _from_json(path: Path) -> dict[str, TensorInfo]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        return {
            str(name): TensorInfo(tuple(map(int, shape)), str(dtype))
            for name, (shape, dtype) in entries.items()
        }
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointDamagedError(
            f"{path} is not a list of shapes ({type(error).__name__})",
            'write {"params/dense/kernel": [[3, 4], "float32"], …}',
        ) from None
