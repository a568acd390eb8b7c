"""Tensors in arguments and results of JAX functions: found, named and replaced."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from migrate.parity.dump.dump import Named
from migrate.parity.dump.recent import Recent

Visit = Callable[[str, Any], Any]


def rebuilt(value: Any, visit: Visit, path: str = "") -> Any:
    """Replace every array in a value by `visit(path, array)`.

    Paths are positions in lists and tuples, keys of dicts, and fields of dataclasses. For other pytrees they
    are JAX's names, joined by dots; "" for a single array. Values that are no array are kept.
    """
    if is_array(value):
        return visit(path, value)
    if isinstance(value, Mapping):
        new = {key: rebuilt(element, visit, _join(path, key)) for key, element in value.items()}
        return new if type(value) is dict else _mapping(value, new)
    if isinstance(value, list | tuple):
        parts = [
            rebuilt(element, visit, _join(path, number)) for number, element in enumerate(value)
        ]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and not _is_module(value):
        fields = [attribute.name for attribute in dataclasses.fields(value) if attribute.init]
        new = {name: rebuilt(getattr(value, name), visit, _join(path, name)) for name in fields}
        return dataclasses.replace(value, **new)
    return _rebuilt_pytree(value, visit, path)


def tensors(value: Any) -> dict[str, Any]:
    """Arrays in a value, by path."""
    arrays: dict[str, Any] = {}

    def keep(path: str, array: Any) -> Any:
        arrays[path] = array
        return array

    rebuilt(value, keep)
    return arrays


def is_array(value: Any) -> bool:
    """Whether a value is an array of numbers (no random key)."""
    import jax

    if isinstance(value, np.ndarray | np.generic):
        return value.dtype != object
    return isinstance(value, jax.Array) and not jax.dtypes.issubdtype(
        value.dtype, jax.dtypes.prng_key
    )


def is_traced(value: Any) -> bool:
    """Whether an array in a value is a tracer: a transformation is running the code."""
    import jax

    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))


def is_batched(value: Any) -> bool:
    """Whether an array in a value is one that vmap passes to its function."""
    import jax

    return any(type(leaf).__name__ == "BatchTracer" for leaf in jax.tree.leaves(value))


def is_floating(dtype: Any) -> bool:
    """Whether a dtype is floating; bfloat16 is, though not for numpy."""
    import jax.numpy as jnp

    return bool(jnp.issubdtype(dtype, jnp.floating))


def named(arrays: Mapping[str, Any], recent: Recent) -> list[Named]:
    """Name arrays for a dump; complex arrays get a last axis (real, imaginary), as torch's sides write
    them.
    """
    return [_named(path, array, recent) for path, array in arrays.items()]


def _named(path: str, value: Any, recent: Recent) -> Named:
    array = np.asarray(value)
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], axis=-1)
    written = isinstance(value, np.ndarray | np.generic)
    return Named(path, array, recent.by_values(array) if written else recent.identity(value, array))


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _mapping(old: Mapping[Any, Any], new: dict[Any, Any]) -> Any:
    if dataclasses.is_dataclass(old) and not isinstance(old, type):  # outputs of transformers
        return type(old)(**new)
    try:
        return type(old)(new)  # type: ignore[call-arg]
    except TypeError:
        return type(old)(**new)


def _is_module(value: Any) -> bool:
    from flax import linen

    return isinstance(value, linen.Module)


def _rebuilt_pytree(value: Any, visit: Visit, path: str) -> Any:
    import jax

    leaves, structure = jax.tree_util.tree_flatten_with_path(value)
    if len(leaves) == 1 and leaves[0][1] is value:
        return value
    new = []
    for keys, leaf in leaves:
        here = ".".join([path, *map(_key, keys)] if path else map(_key, keys))
        new.append(visit(here, leaf) if is_array(leaf) else leaf)
    return jax.tree_util.tree_unflatten(structure, new)


def _key(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
