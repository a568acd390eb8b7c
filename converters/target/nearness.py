"""How near the names of two modules are to each other, and what speaks against them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from converters.target.modules import COLLECTIONS, ModuleFamily

# Nearer than this to each other are two names as good as equally near.
EQUAL = 0.02
_KINDS = {"dense", "conv", "norm", "embed", "block"}
_FEW = 8
_EVERYWHERE = math.log(1.25)  # in four of five names


@dataclass(frozen=True)
class Nearness:
    """Of two modules.

    Attributes:
        score: the share of common words, the rarer the weightier, and a little for their order.
        common: these words.
        differs: whether each has a word that the other lacks: what speaks for one of several such pairs
            is then only what is common, not how rare the rest is.
    """

    score: float
    common: frozenset[str]
    differs: bool


def weights_of(families: Sequence[ModuleFamily]) -> dict[str, float]:
    """A word says the more the rarer it is."""
    count = Counter(word for family in families for word in _names(family))
    return {word: math.log((1 + len(families)) / its) for word, its in count.items()}


def nearness(source: ModuleFamily, target: ModuleFamily, weights: Mapping[str, float]) -> Nearness | None:
    """Of two modules; None if both are called something and nothing of it is the same."""
    one, other = _names(source), _names(target)
    mine, theirs = (_telling(names, weights) for names in (one, other))
    common = one & other
    if not common or (mine and theirs and not mine & theirs):
        return None
    shared = sum(weights[word] for word in common)
    share = shared / (sum(weights[word] for word in one | other) or 1.0)
    order = SequenceMatcher(None, source.words, target.words, autojunk=False).ratio()
    # LayerNorm and norm are the same word; where both sides have both, the letters tell.
    same = _letters(source.name) == _letters(target.name)
    score = share + 0.1 * order + (2 * EQUAL if same else 0.0)
    return Nearness(score, common, bool(mine - other and theirs - one))


def _letters(path: str) -> str:
    collection, _, rest = path.partition("/")
    return re.sub(r"[^a-z0-9]", "", (rest if collection in COLLECTIONS else path).lower())


def _telling(names: frozenset[str], weights: Mapping[str, float]) -> frozenset[str]:
    """The words that are not just the kind of a layer or in nearly every name."""
    many = len(weights) > _FEW
    return frozenset(word for word in names - _KINDS if not (many and weights[word] < _EVERYWHERE))


def _names(family: ModuleFamily) -> frozenset[str]:
    return (frozenset(family.words) - {"#"}) | ({family.kind} if family.kind else frozenset())
