"""Options of a training run as plain values: a Namespace, a dataclass, a config of any class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Any

from converters.checkpoint.inert.records import Constructor, Record, printable
from converters.checkpoint.lazy import LazyTensor

_DEEPEST = 12
_NESTED = 4  # maximum nesting of wrapper objects
_MOST = 10_000  # maximum number of values of one entry
_LONGEST = 500  # maximum characters of a text
# Classes that keep their contents in one attribute: OmegaConf's nodes, mmcv's Config.
_INSIDE = ("_content", "_cfg_dict")
_VALUES = ("_val", "_content", "_value_")


def contents(value: Any) -> Mapping[Any, Any] | None:
    """Return the entries of a dict or the named contents of an object, or None."""
    for _ in range(_NESTED):
        if isinstance(value, Mapping):
            return value
        if type(value) is not Record:
            return None
        if value.entries is not None:
            return value.entries
        if value.state is None and value.keywords:
            return value.keywords
        if value.state is None and [*map(type, value.arguments)] == [dict]:
            return value.arguments[0]
        if type(value.state) is tuple and len(value.state) > 2 and type(value.state[0]) is Record:
            value = value.state[0]  # mmengine's Config: its dict, its file, its text
            continue
        attributes = value.attributes
        inner = next((attributes[name] for name in _INSIDE if name in attributes), None)
        if not isinstance(inner, Mapping) and type(inner) is not Record:
            return attributes or None
        value = inner
    return None


def plain(value: Any) -> Any:
    """Return the value in JSON types; other values (a class, a tensor) become their names.

    Shared and circular references are cut when they become too deep or too many.
    """
    left = [_MOST]
    return _plain(value, 0, left)


def _plain(value: Any, depth: int, left: list[int]) -> Any:
    left[0] -= 1
    if depth > _DEEPEST or left[0] < 0:
        return "…"
    if value is None or isinstance(value, bool | int | float):
        return value if not isinstance(value, float) or abs(value) < float("inf") else str(value)
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else value[:_LONGEST] + "…"
    if type(value) is Record:
        name = next((name for name in _VALUES if name in value.attributes), None)
        if name is not None:  # OmegaConf wraps every value, including lists
            return _plain(value.attributes[name], depth + 1, left)
    held = contents(value)
    if type(value) is Record and held is None:
        return _record(value, depth, left)
    if held is not None:
        pairs = takewhile(lambda _: left[0] > 0, held.items())
        return {_key(key): _plain(item, depth + 1, left) for key, item in pairs}
    if isinstance(value, list | set | frozenset) or type(value) is tuple:
        return _listed(value, depth, left)
    return named(value)


def _listed(values: Iterable[Any], depth: int, left: list[int]) -> list[Any]:
    within = takewhile(lambda _: left[0] > 0, values)
    return [_plain(item, depth + 1, left) for item in within]


def _record(value: Record, depth: int, left: list[int]) -> Any:
    held = value.items if value.items is not None else value.state
    if isinstance(held, list):  # the fields of a frozen dataclass with slots
        return _listed(held, depth, left)
    arguments = value.arguments
    if type(value.state) is tuple and len(value.state) == 4 and value.name == "functools.partial":
        called, arguments, keywords, _ = value.state
        shown = [named(called)]
        if isinstance(arguments, tuple):
            shown += [repr(_plain(item, depth + 1, left)) for item in arguments[:8]]
        if isinstance(keywords, dict):
            for key, item in list(keywords.items())[:8]:
                shown.append(f"{_key(key)}={_plain(item, depth + 1, left)!r}")
        return f"functools.partial({', '.join(shown)})"[:_LONGEST]
    if not arguments:
        return value.name
    inside = ", ".join(repr(_plain(item, depth + 1, left)) for item in arguments[:8])
    return f"{value.name.removeprefix('builtins.')}({inside})"[:_LONGEST]


def _key(key: Any) -> str:
    return key[:_LONGEST] if isinstance(key, str) else str(plain(key))[:_LONGEST]


def named(value: Any) -> str:
    """Return the name of a value that is not plain data."""
    if isinstance(value, Constructor | Record):
        return printable(value.name)
    if isinstance(value, LazyTensor):
        shape = "×".join(map(str, value.info.shape)) or "scalar"
        return f"tensor {shape} {value.info.dtype}"
    form = getattr(value, "form", None)
    if isinstance(form, str):
        return form
    name = getattr(value, "name", None)
    if isinstance(name, str):
        return name
    size = f" of {len(value)}" if hasattr(value, "__len__") else ""
    return f"{type(value).__name__}{size}"
