"""Walking nested dicts, lists and tuples, with the place of each leaf as a user would write it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


def leaves(value: object, place: str = "") -> Iterator[tuple[str, object]]:
    """Each leaf of nested mappings, lists and tuples, as (place, leaf): `["x"][0]`."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{place}[{key!r}]")
    elif isinstance(value, list | tuple) and not hasattr(value, "dtype"):
        for index, item in enumerate(value):
            yield from leaves(item, f"{place}[{index}]")
    else:
        yield place, value


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same nesting with `change` applied to each leaf; mappings come back as plain dicts."""
    if isinstance(value, Mapping):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [mapped(item, change) for item in value]
        if isinstance(value, list):
            return items
        # A named tuple takes its fields one by one.
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return change(value)
