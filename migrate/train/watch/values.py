"""Values of a frame: data with tensors, modules, objects that hold modules, and constants."""

from __future__ import annotations

import copy
import dataclasses
import keyword
import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from converters.checkpoint.dtypes import torch_to_numpy

Path = tuple[Any, ...]


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, torch.Tensor]]:
    """Yield the tensors of nested data, each with its keys and indices. Parameters are no data."""
    if isinstance(value, torch.Tensor):
        if not isinstance(value, nn.Parameter):
            yield path, value
        return
    for key, item in _items(value):
        yield from leaves(item, (*path, key))


def is_data(value: Any) -> bool:
    """Whether a value is a tensor, or a container of tensors."""
    return next(leaves(value), None) is not None


def holds_data(value: Any) -> bool:
    """Whether an object has tensors as attributes: a buffer of rollouts."""
    if isinstance(value, nn.Module | type) or not hasattr(value, "__dict__"):
        return False
    return any(map(is_data, vars(value).values()))


def settings(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield numbers and strings beside the tensors of nested data, each with its keys and indices."""
    if value is None or isinstance(value, bool | int | float | str):
        yield path, value
    for key, item in _items(value):
        yield from settings(item, (*path, key))


def changed(
    value: Any,
    change: Callable[[Path, torch.Tensor], Any],
    path: Path = (),
    others: Mapping[Path, Any] = MappingProxyType({}),
) -> Any:
    """Return nested data with other values for its tensors, and for those of `others`."""
    if isinstance(value, torch.Tensor):
        return value if isinstance(value, nn.Parameter) else change(path, value)
    items = [(key, changed(item, change, (*path, key), others)) for key, item in _items(value)]
    if not items:
        return others.get(path, value)
    if isinstance(value, tuple):
        values = [item for _, item in items]
        return type(value)(*values) if hasattr(value, "_fields") else tuple(values)
    if isinstance(value, list):
        return [item for _, item in items]
    if dataclasses.is_dataclass(value):
        return dataclasses.replace(value, **dict(items))  # type: ignore[type-var]
    if isinstance(value, dict):
        return {**value, **dict(items)} if type(value) is dict else _filled(value, items)
    return _filled(value, items)


def snapshot(value: Any) -> Any:
    """Return nested data with copies of its tensors."""
    return changed(value, lambda path, tensor: tensor.detach().clone())


def plain(value: Any) -> Any:
    """Return nested data as dictionaries, lists and NumPy arrays."""
    if isinstance(value, torch.Tensor):
        return torch_to_numpy(value, "a tensor of the script").copy()
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    items = list(_items(value))
    return {key: plain(item) for key, item in items} if items else value


def names(data: Mapping[str, Any]) -> dict[tuple[str, Path], str]:
    """Name each tensor of the data: the last key that is a word, else the variable and the index.

    Names are in lower case, as torch.export writes them.
    """
    every = [(root, path) for root, value in data.items() for path, _ in leaves(value)]
    short = [_short(root, path) for root, path in every]
    return {
        (root, path): name if short.count(name) == 1 else _joined(root, path)
        for (root, path), name in zip(every, short, strict=True)
    }


# Levels of objects in which modules are looked for: `self.model`, `self.engine.model`.
_DEPTH = 2


def held_modules(value: Any, depth: int = _DEPTH) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules among an object's attributes, and those of its attributes, with their names."""
    if isinstance(value, nn.Module) or not hasattr(value, "__dict__") or isinstance(value, type):
        return
    for name, attribute in vars(value).items():
        if isinstance(attribute, nn.Module):
            yield name, attribute
        elif _holds(attribute, depth):
            yield from held_modules(attribute, depth - 1)


def attributes(value: Any, depth: int = _DEPTH) -> Iterator[tuple[str, Any]]:
    """Yield attributes of an object of the script, and those of its attributes, with their dotted names."""
    if type(value).__module__ != "__main__" or isinstance(value, nn.Module | type):
        return
    for name, attribute in list(getattr(value, "__dict__", {}).items()):
        yield name, attribute
        if depth > 1:
            yield from ((f"{name}.{n}", held) for n, held in attributes(attribute, depth - 1))


def _holds(attribute: Any, depth: int) -> bool:
    """Whether modules are looked for in an object's attribute, too: an object of a class of the script."""
    if isinstance(attribute, type) or not hasattr(attribute, "__dict__"):
        return False
    return depth > 1 and type(attribute).__module__ == "__main__"


class Held:
    """An object of the script that holds modules. A deep copy of a step shares all but the modules.

    Args:
        value: the object.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __deepcopy__(self, memo: dict[int, Any]) -> Held:
        return Held(_with_copies(self.value, memo))


def _with_copies(value: Any, memo: dict[int, Any], depth: int = _DEPTH) -> Any:
    """The object with copies of the modules that `held_modules` yields."""
    if id(value) in memo:
        return memo[id(value)]
    memo[id(value)] = twin = copy.copy(value)
    for name, attribute in vars(value).items():
        if isinstance(attribute, nn.Module):
            twin.__dict__[name] = copy.deepcopy(attribute, memo)
        elif _holds(attribute, depth):
            twin.__dict__[name] = _with_copies(attribute, memo, depth - 1)
    return twin


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, tuple | list):
        yield from enumerate(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))


def _filled(value: Any, items: list[tuple[Any, Any]]) -> Any:
    twin = copy.copy(value)
    if hasattr(twin, "data") and isinstance(twin.data, dict):  # a UserDict, as a BatchEncoding is
        twin.data = dict(twin.data)
    for key, item in items:
        twin[key] = item
    return twin


def _short(root: str, path: Path) -> str:
    if path and isinstance(path[-1], str):
        return _word(path[-1])
    return _joined(root, path)


def _joined(root: str, path: Path) -> str:
    return _word("_".join(map(str, (root, *path))))


def _word(text: str) -> str:
    name = re.sub(r"\W+", "_", text).strip("_").lower()
    if not name or name[0].isdigit() or keyword.iskeyword(name):
        return f"input_{name}".rstrip("_")
    return name
