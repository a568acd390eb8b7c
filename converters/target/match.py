"""Which modules of a plan are which of the target: by name, as far as shapes and numbers allow it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from converters.target.modules import COLLECTIONS, Family, apart

# Below this share of common words a name says nothing: measured on the pairs of the tests, where wrong
# ones (a pooler for a prediction head) are at 0.08 and below and right ones at 0.2 and above.
_SAYS_NOTHING = 0.15
_EQUAL = 0.02  # nearer than this to each other are two names as good as equally near
_KINDS = {"dense", "conv", "norm", "embed", "block"}
_FEW = 8
_EVERYWHERE = math.log(1.25)  # in four of five names


@dataclass(frozen=True)
class Matched:
    """What was found.

    Attributes:
        pairs: a family of the plan and that of the target.
        extra: families of the plan that none of the target is.
        missing: families of the target that none of the plan is.
        problems: families of the target that several may be, one line each.
    """

    pairs: tuple[tuple[Family, Family], ...]
    extra: tuple[Family, ...]
    missing: tuple[Family, ...]
    problems: tuple[str, ...]


def match(
    sources: Sequence[Family],
    targets: Sequence[Family],
    fits: Callable[[Family, Family], bool],
) -> Matched:
    """Pair the families; those that stay alone once more, one number at a time (fc1, fc2)."""
    whole = match_whole(sources, targets, fits)
    if not whole.extra or not whole.missing:
        return whole
    mine = [part for family in whole.extra for part in apart(family)]
    theirs = [part for family in whole.missing for part in apart(family)]
    finer = [
        match_whole(mine, whole.missing, fits),
        match_whole(whole.extra, theirs, fits),
        match_whole(mine, theirs, fits),
    ]
    best = min(finer, key=lambda one: len(one.extra) + len(one.missing))
    if best.extra or best.missing:  # it explains no more than before
        return whole
    return replace(best, pairs=whole.pairs + best.pairs)


def match_whole(
    sources: Sequence[Family],
    targets: Sequence[Family],
    fits: Callable[[Family, Family], bool],
) -> Matched:
    """Pair the families: each with the one that is nearest by name, if it is the nearest of that, too.

    Args:
        sources: of the plan.
        targets: of the Flax model.
        fits: whether shapes, roles and numbers allow a pair.
    """
    weights = _weights([*sources, *targets])
    scores = {
        (one, other): score
        for one, source in enumerate(sources)
        for other, target in enumerate(targets)
        if fits(source, target) and (score := _score(source, target, weights)) >= _SAYS_NOTHING
    }
    pairs: dict[int, int] = {}
    while True:
        best_of_source = _best(scores, 0)
        best_of_target = _best(scores, 1)
        found = {
            one: its[0]
            for one, its in best_of_source.items()
            if len(its) == 1 and best_of_target.get(its[0]) == [one]
        }
        if not found:
            break
        pairs |= found
        taken = set(found.values())
        scores = {
            (one, other): score
            for (one, other), score in scores.items()
            if one not in found and other not in taken
        }
    problems = [
        f"{targets[other]} may be " + " or ".join(str(sources[one]) for one in its)
        for other, its in _best(scores, 1).items()
        if len(its) > 1
    ]
    problems += [
        f"{sources[one]} may be " + " or ".join(str(targets[other]) for other in its)
        for one, its in _best(scores, 0).items()
        if len(its) > 1
    ]
    taken = set(pairs.values())
    return Matched(
        tuple((sources[one], targets[other]) for one, other in pairs.items()),
        tuple(source for one, source in enumerate(sources) if one not in pairs),
        tuple(target for other, target in enumerate(targets) if other not in taken),
        tuple(problems),
    )


def _best(scores: Mapping[tuple[int, int], float], side: int) -> dict[int, list[int]]:
    """Of each family the nearest on the other side; several if they are equally near."""
    top: dict[int, float] = {}
    for pair, score in scores.items():
        top[pair[side]] = max(score, top.get(pair[side], score))
    best: dict[int, list[int]] = {}
    for pair, score in scores.items():
        if score > top[pair[side]] - _EQUAL:
            best.setdefault(pair[side], []).append(pair[1 - side])
    return best


def _weights(families: Sequence[Family]) -> dict[str, float]:
    """A word says the more the rarer it is."""
    count = Counter(word for family in families for word in _names(family))
    return {word: math.log((1 + len(families)) / its) for word, its in count.items()}


def _score(source: Family, target: Family, weights: Mapping[str, float]) -> float:
    """The share of common words, and a little for their order."""
    one, other = _names(source), _names(target)
    mine, theirs = (_telling(names, weights) for names in (one, other))
    if mine and theirs and not mine & theirs:
        return 0.0  # both are called something, and nothing of it is the same
    common = sum(weights[word] for word in one & other)
    share = common / (sum(weights[word] for word in one | other) or 1.0)
    order = SequenceMatcher(None, source.words, target.words, autojunk=False).ratio()
    # LayerNorm and norm are the same word; where both sides have both, the letters tell.
    same = _letters(source.name) == _letters(target.name)
    return share if not share else share + 0.1 * order + (2 * _EQUAL if same else 0.0)


def _letters(path: str) -> str:
    collection, _, rest = path.partition("/")
    return re.sub(r"[^a-z0-9]", "", (rest if collection in COLLECTIONS else path).lower())


def _telling(names: frozenset[str], weights: Mapping[str, float]) -> frozenset[str]:
    """The words that are not just the kind of a layer or in nearly every name."""
    many = len(weights) > _FEW
    return frozenset(word for word in names - _KINDS if not (many and weights[word] < _EVERYWHERE))


def _names(family: Family) -> frozenset[str]:
    return (frozenset(family.words) - {"#"}) | ({family.kind} if family.kind else frozenset())
