"""Modules of both sides, with repeated modules grouped and the role of each of their arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from converters.checkpoint.reader import TensorInfo
from converters.target.words import words_of

_ROLES = {
    "kernel": "kernel",
    "w": "kernel",
    "scale": "scale",
    "gamma": "scale",
    "bias": "bias",
    "beta": "bias",
    "b": "bias",
    "embedding": "value",
    "mean": "mean",
    "var": "var",
}
_KINDS = {1: "", 2: "dense", 3: "conv", 4: "conv", 5: "conv"}
_FEW = 4
COLLECTIONS = ("params", "batch_stats", "buffers")


@dataclass(frozen=True)
class ModuleFamily:
    """Modules whose names differ only in numbers.

    Attributes:
        words: the words of their path, "#" for each number that varies.
        members: varying numbers → role → path of the array.
        kind: "dense", "conv", "norm", "embed" or "".
    """

    words: tuple[str, ...]
    members: Mapping[tuple[int, ...], Mapping[str, str]]
    kind: str

    @property
    def roles(self) -> frozenset[str]:
        """Roles of all its arrays."""
        return frozenset(role for member in self.members.values() for role in member)

    @property
    def name(self) -> str:
        """Path of one of its arrays, for messages."""
        first = next(iter(self.members.values()))
        return next(iter(first.values()))

    def __str__(self) -> str:
        more = f" and {len(self.members) - 1} more like it" if len(self.members) > 1 else ""
        return f"{self.name}{more}"


def apart(family: ModuleFamily) -> list[ModuleFamily]:
    """Return the modules of each innermost number separately: fc1 and fc2.

    A family without such numbers, or with many of them, is not divided.
    """
    values = sorted({numbers[-1] for numbers in family.members if numbers})
    if not 1 < len(values) <= _FEW:
        return [family]
    words = list(family.words)
    del words[len(words) - 1 - words[::-1].index("#")]
    parts = []
    for value in values:
        members = {
            numbers[:-1]: roles for numbers, roles in family.members.items() if numbers[-1] == value
        }
        parts.append(ModuleFamily(tuple(words), members, family.kind))
    return parts


def role_of(path: str, shape: tuple[int, ...]) -> tuple[str, str]:
    """Return the path of the module that an array belongs to, and the array's role.

    A parameter with its own name is a separate module, whose array is its "value".
    """
    module, _, name = path.rpartition("/")
    if name == "weight":
        return module, "scale" if len(shape) == 1 else "kernel"
    if name in _ROLES:
        return module, _ROLES[name]
    return path, "value"


def families(arrays: Mapping[str, TensorInfo]) -> list[ModuleFamily]:
    """Return the modules of these arrays; modules of another kind or with other roles form separate
    families."""
    modules: dict[str, dict[str, str]] = {}
    for path, info in arrays.items():
        collection, _, rest = path.partition("/")
        inner = rest if collection in COLLECTIONS else path
        module, role = role_of(inner, info.shape)
        modules.setdefault(module, {})[role] = path
    grouped: dict[tuple[Any, ...], dict[tuple[int, ...], dict[str, str]]] = {}
    for module, roles in modules.items():
        words = words_of(module)
        key: tuple[Any, ...] = (words.words, frozenset(roles), _kind(roles, arrays))
        while words.numbers in grouped.get(key, {}):
            key = (*key, "again")  # two modules of the same words: separate families
        grouped.setdefault(key, {})[words.numbers] = roles
    return [_family(key[0], members, arrays) for key, members in grouped.items()]


def _family(
    words: tuple[str, ...],
    members: Mapping[tuple[int, ...], Mapping[str, str]],
    arrays: Mapping[str, TensorInfo],
) -> ModuleFamily:
    columns = list(zip(*members, strict=True))
    varying = [index for index, column in enumerate(columns) if len(set(column)) > 1]
    kept: list[str] = []
    number = 0
    for word in words:
        if word == "#":
            if number in varying:
                kept.append(word)
            number += 1
        else:
            kept.append(word)
    renumbered = {
        tuple(numbers[index] for index in varying): member for numbers, member in members.items()
    }
    return ModuleFamily(tuple(kept), renumbered, _kind(next(iter(members.values())), arrays))


def _kind(roles: Mapping[str, str], arrays: Mapping[str, TensorInfo]) -> str:
    if "kernel" in roles:
        return _KINDS.get(len(arrays[roles["kernel"]].shape), "")
    if "scale" in roles or "mean" in roles:
        return "norm"
    return "embed" if roles.get("value", "").endswith("/embedding") else ""
