"""Names of layers: similarity, and equality up to numbers."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable

from converters.target.words import words_of


def likeness(flax: str, torch: str) -> float:
    """Similarity from 0 to 2: common words, weighted for the last level, and equal numbers."""
    flax_words, other = (words_of(re.sub(r"[.]", "/", name)) for name in (flax, torch))
    ends = [set(words_of(_level(name)).names) for name in (flax, torch)]
    numbers = 0.1 if flax_words.numbers and flax_words.numbers == other.numbers else 0.0
    return _share(*ends) + 0.5 * _share(set(flax_words.names), set(other.names)) + numbers


def pattern(asking: str, names: Iterable[str]) -> Hashable:
    """Key that is equal for the same question in repeated blocks."""
    return words_of(asking.replace(".", "/")).words, tuple(
        words_of(name.replace(".", "/")).words for name in names
    )


def _level(name: str) -> str:
    """Name of the module itself; for an array's path, with its module."""
    return "/".join(name.replace(".", "/").split("/")[-2 if "/" in name else -1 :])


def _share(words: set[str], other: set[str]) -> float:
    return len(words & other) / len(words | other) if words | other else 0.0
