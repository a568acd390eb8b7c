"""What names say of two layers: how much they have in common, and which are alike but for their numbers."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable

from converters.target.words import words_of


def likeness(flax: str, torch: str) -> float:
    """From 0 to 2: common words, the last level's count most, and equal numbers."""
    one, other = (words_of(re.sub(r"[.]", "/", name)) for name in (flax, torch))
    ends = [set(words_of(_level(name)).names) for name in (flax, torch)]
    numbers = 0.1 if one.numbers and one.numbers == other.numbers else 0.0
    return _share(*ends) + 0.5 * _share(set(one.names), set(other.names)) + numbers


def pattern(asking: str, names: Iterable[str]) -> Hashable:
    """Equal for the same question in repeated blocks."""
    return words_of(asking.replace(".", "/")).words, tuple(
        words_of(name.replace(".", "/")).words for name in names
    )


def _level(name: str) -> str:
    """The module's own name; of an array's path the module with it."""
    return "/".join(name.replace(".", "/").split("/")[-2 if "/" in name else -1 :])


def _share(one: set[str], other: set[str]) -> float:
    return len(one & other) / len(one | other) if one | other else 0.0
