"""Traversal of nested dicts, lists and tuples, with the path of each leaf in Python syntax."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield (path, leaf) for each leaf of nested mappings, lists and tuples. A path looks like `["x"][0]`."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{path}[{key!r}]")
    elif isinstance(value, list | tuple) and not hasattr(value, "dtype"):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}[{index}]")
    else:
        yield path, value


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the same structure with `change` applied to each leaf. Mappings become plain dicts."""
    if isinstance(value, Mapping):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [mapped(item, change) for item in value]
        if isinstance(value, list):
            return items
        # A named tuple takes its fields as separate arguments.
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return change(value)
