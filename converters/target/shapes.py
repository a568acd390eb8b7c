"""Shapes of a Flax model's arrays by path, without building the model: `jax.eval_shape`."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from converters.checkpoint.pytree import flatten
from converters.checkpoint.reader import TensorInfo
from converters.errors import CheckpointDamagedError, TargetError
from converters.model import imported, named_object, split_call
from converters.output.arrays import open_arrays

# Inputs to try if none are given: token ids, images, vectors.
_GUESSES: tuple[tuple[tuple[int, ...], str], ...] = (
    ((1, 8), "int32"),
    ((1, 32, 32, 3), "float32"),
    ((1, 224, 224, 3), "float32"),
    ((1, 8), "float32"),
)


def target_shapes(target: Any, inputs: Any = None) -> dict[str, TensorInfo]:
    """Return path → shape and dtype of every array of a Flax model, without allocation.

    Args:
        target: `pkg.mod:name` or `file.py:name` of a linen module (or a function that gives one, or
            `(module, inputs)`), of an nnx module class or a function with `rngs`, of transformers' Flax
            model; such an object itself; a pytree of shapes; or a file: a Flax checkpoint, or `.json`
            with `{path: [shape, dtype]}`.
        inputs: the arguments of linen's `init`: an array or shape-dtype struct, a tuple of them or
            a dict by name, or the name of such an object or of a function that returns it; None for
            the target's own, else for common inputs.

    Raises:
        TargetError: the model cannot be built, or its inputs are unknown.
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
    """Return the object of `pkg.mod:name` or `file.py:name`."""
    named, args, kwargs = split_call(spec)
    location, _, name = named.rpartition(":")
    if not location or not name:
        raise TargetError(
            f"{spec!r} names no file and no object", "write pkg.mod:name or file.py:name"
        )
    with imported(spec, location) as module:
        target = named_object(module, location, name)
    return functools.partial(target, *args, **kwargs) if args or kwargs else target


def _shapes(target: Any, inputs: Any) -> dict[str, TensorInfo]:
    from flax import linen, nnx

    if isinstance(target, type) and issubclass(target, nnx.Module):
        return _of_nnx(target)
    if callable(target) and not isinstance(target, linen.Module | nnx.Module):
        if not isinstance(target, type) and _wants_rngs(target):
            return _of_nnx(target)
        target = _called(target)
    if isinstance(target, tuple) and len(target) == 2 and isinstance(target[0], linen.Module):
        target, own_inputs = target
        inputs = own_inputs if inputs is None else inputs
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
    results: list[dict[str, TensorInfo]] = []
    for candidate in candidates:
        try:
            variables = _init(module, candidate)
        except Exception as error:
            errors.append(f"{type(error).__name__}: {str(error)[:100]}")
        else:
            results.append(_named(meta.unbox(variables)))
    if not results:
        raise TargetError(
            f"{type(module).__name__} cannot be initialized ({errors[-1]})",
            "give its inputs (--target-inputs file.py:name)",
        )
    if any(other != results[0] for other in results[1:]):
        raise TargetError(
            f"the shapes of {type(module).__name__} depend on its inputs",
            "give its inputs (--target-inputs file.py:name)",
        )
    return results[0]


def _init(module: Any, inputs: Any) -> Any:
    import jax

    rngs = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    if isinstance(inputs, Mapping):
        return jax.eval_shape(lambda values: module.init(rngs, **values), dict(inputs))
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    return jax.eval_shape(lambda *values: module.init(rngs, *values), *arguments)


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
