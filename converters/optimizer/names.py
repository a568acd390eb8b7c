"""Names of the arrays in JAX trees: parameters, and the state that optax keeps for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Field names in the states of optax and of converters.optimizer.transforms.
FIELDS = ("mu", "nu", "nu_max", "trace", "row", "col", "v", "count")


def named_leaves(tree: Any) -> tuple[list[tuple[str, Any]], Any]:
    """Return the `/`-joined path and the leaf for each leaf in the tree's order, and the tree's structure.

    An nnx variable is not a level of the path.
    """
    import jax

    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    return [("/".join(parts(path)), leaf) for path, leaf in leaves], structure


def normal(path: str) -> str:
    """Return the path without linen's collection, since both forms name the same parameter."""
    return path.removeprefix("params/")


def parts(path: Sequence[Any]) -> list[str]:
    """Return the names on a JAX path, without those that only open a variable."""
    named = [_name(key) for key in path]
    return [name for name, is_attribute in named if not (is_attribute and name in _OPENERS)]


def field_of(path: Sequence[Any]) -> tuple[list[str], str, str] | None:
    """Return the path to a field of an optax state, the field, and the parameter's path.

    The result is None if the path contains no known field.
    """
    named = [_name(key) for key in path]
    for index in reversed(range(len(named))):
        name, is_attribute = named[index]
        if is_attribute and name in FIELDS:
            return (
                [step_name for step_name, _ in named[:index]],
                name,
                "/".join(parts(path[index + 1 :])),
            )
    return None


_OPENERS = ("value", "raw_value")


def _name(key: Any) -> tuple[str, bool]:
    """Return the text of one step of a path, and whether it is an attribute."""
    for attribute in ("key", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute)), False
    return str(getattr(key, "name", key)), True
