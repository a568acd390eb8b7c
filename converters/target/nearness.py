"""Nearness of the names of two modules, and the differences between them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from converters.target.modules import COLLECTIONS, ModuleFamily

# Nearness values closer than this count as equal.
EQUAL = 0.02
_KINDS = {"dense", "conv", "norm", "embed", "block"}
_FEW = 8
_EVERYWHERE = math.log(1.25)  # in four of five names


@dataclass(frozen=True)
class Nearness:
    """Nearness of two modules.

    Attributes:
        score: the fraction of common words, weighted by rarity, plus a little for their order.
        common: the common words.
        differs: whether each has a word that the other lacks. Several such pairs are compared only
            by their common words, not by the rarity of the rest.
    """

    score: float
    common: frozenset[str]
    differs: bool


def weights_of(families: Sequence[ModuleFamily]) -> dict[str, float]:
    """Return the weight of each word: the rarer, the higher."""
    count = Counter(word for family in families for word in _names(family))
    return {word: math.log((1 + len(families)) / number) for word, number in count.items()}


def nearness(
    source: ModuleFamily, target: ModuleFamily, weights: Mapping[str, float]
) -> Nearness | None:
    """Return the nearness of two modules; None if both have names without a common word."""
    first, other = _names(source), _names(target)
    first_words, second_words = (_distinctive(names, weights) for names in (first, other))
    common = first & other
    if not common or (first_words and second_words and not first_words & second_words):
        return None
    shared = sum(weights[word] for word in common)
    share = shared / (sum(weights[word] for word in first | other) or 1.0)
    order = SequenceMatcher(None, source.words, target.words, autojunk=False).ratio()
    # LayerNorm and norm are the same word; if both sides have both, the letters decide.
    same = _letters(source.name) == _letters(target.name)
    score = share + 0.1 * order + (2 * EQUAL if same else 0.0)
    return Nearness(score, common, bool(first_words - other and second_words - first))


def _letters(path: str) -> str:
    collection, _, rest = path.partition("/")
    return re.sub(r"[^a-z0-9]", "", (rest if collection in COLLECTIONS else path).lower())


def _distinctive(names: frozenset[str], weights: Mapping[str, float]) -> frozenset[str]:
    """Return the words that are not just the kind of a layer or in nearly every name."""
    many = len(weights) > _FEW
    return frozenset(word for word in names - _KINDS if not (many and weights[word] < _EVERYWHERE))


def _names(family: ModuleFamily) -> frozenset[str]:
    return (frozenset(family.words) - {"#"}) | ({family.kind} if family.kind else frozenset())
