"""Tensors inside what JAX functions take and give: found, named and replaced."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from migrate.parity.dump.dump import Named
from migrate.parity.dump.recent import Recent

Visit = Callable[[str, Any], Any]


def rebuilt(value: Any, visit: Visit, path: str = "") -> Any:
    """The value with every array replaced by `visit(path, array)`.

    Paths are positions in lists and tuples, keys of dicts, fields of dataclasses, and for other pytrees what
    JAX names them, joined by dots; "" for a single array. What is no array is kept.
    """
    if is_array(value):
        return visit(path, value)
    if isinstance(value, Mapping):
        new = {key: rebuilt(one, visit, _join(path, key)) for key, one in value.items()}
        return new if type(value) is dict else _mapping(value, new)
    if isinstance(value, list | tuple):
        parts = [rebuilt(one, visit, _join(path, number)) for number, one in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and not _is_module(value):
        fields = [one.name for one in dataclasses.fields(value) if one.init]
        new = {name: rebuilt(getattr(value, name), visit, _join(path, name)) for name in fields}
        return dataclasses.replace(value, **new)
    return _rebuilt_pytree(value, visit, path)


def tensors(value: Any) -> dict[str, Any]:
    """The arrays in a value, by path."""
    found: dict[str, Any] = {}

    def keep(path: str, array: Any) -> Any:
        found[path] = array
        return array

    rebuilt(value, keep)
    return found


def is_array(value: Any) -> bool:
    """Whether it is an array of numbers (no random key)."""
    import jax

    if isinstance(value, np.ndarray | np.generic):
        return value.dtype != object
    return isinstance(value, jax.Array) and not jax.dtypes.issubdtype(
        value.dtype, jax.dtypes.prng_key
    )


def is_traced(value: Any) -> bool:
    """Whether an array in it has no values: a transformation runs the code on stand-ins."""
    import jax

    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))


def is_batched(value: Any) -> bool:
    """Whether an array in it is one that vmap passes to the code that it maps."""
    import jax

    return any(type(leaf).__name__ == "BatchTracer" for leaf in jax.tree.leaves(value))


def is_floating(dtype: Any) -> bool:
    """Whether it is a floating dtype; bfloat16 is one, for numpy it is not."""
    import jax.numpy as jnp

    return bool(jnp.issubdtype(dtype, jnp.floating))


def named(found: Mapping[str, Any], recent: Recent) -> list[Named]:
    """For a dump; complex arrays with a last axis (real, imaginary), as torch's sides write them."""
    return [_named(path, array, recent) for path, array in found.items()]


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
