"""The arrays of JAX trees by name: parameters, and what optax keeps for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# What optax's states call what they keep, and what those of converters.optimizer.transforms do.
FIELDS = ("mu", "nu", "nu_max", "trace", "row", "col", "v", "count")


def named_leaves(tree: Any) -> tuple[list[tuple[str, Any]], Any]:
    """The `/`-joined path of each leaf and the leaf, in the tree's order; and the tree's structure.

    An nnx variable is no level of the path.
    """
    import jax

    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    return [("/".join(parts(path)), leaf) for path, leaf in leaves], structure


def normal(path: str) -> str:
    """A path with or without linen's collection is the same parameter."""
    return path.removeprefix("params/")


def parts(path: Sequence[Any]) -> list[str]:
    """The names of one path of JAX, without those that only open a variable."""
    named = [_name(key) for key in path]
    return [name for name, is_attribute in named if not (is_attribute and name in _OPENERS)]


def field_of(path: Sequence[Any]) -> tuple[list[str], str, str] | None:
    """Of a leaf of an optax state: what leads to it, its field, and the parameter's path.

    None where no field that is known is on its way.
    """
    named = [_name(key) for key in path]
    for index in reversed(range(len(named))):
        name, is_attribute = named[index]
        if is_attribute and name in FIELDS:
            return [one for one, _ in named[:index]], name, "/".join(parts(path[index + 1 :]))
    return None


_OPENERS = ("value", "raw_value")


def _name(key: Any) -> tuple[str, bool]:
    """Text of one step of a path, and whether it is an attribute."""
    for attribute in ("key", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute)), False
    return str(getattr(key, "name", key)), True
