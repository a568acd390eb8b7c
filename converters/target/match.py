"""Which modules of a plan are which of the target: by name, as far as shapes and numbers allow it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from converters.target.modules import ModuleFamily, apart
from converters.target.nearness import EQUAL, Nearness, nearness, weights_of

# Below this nearness a name says nothing, and a pair is left to the user.
_SAYS_NOTHING = 0.15


@dataclass(frozen=True)
class Matched:
    """What was found.

    Attributes:
        pairs: a family of the plan and that of the target.
        extra: families of the plan that none of the target is.
        missing: families of the target that none of the plan is.
        problems: families of the target that several may be, one line each.
        by_elimination: pairs that are called otherwise in part, the only ones of their kind left.
    """

    pairs: tuple[tuple[ModuleFamily, ModuleFamily], ...]
    extra: tuple[ModuleFamily, ...]
    missing: tuple[ModuleFamily, ...]
    problems: tuple[str, ...]
    by_elimination: tuple[tuple[ModuleFamily, ModuleFamily], ...] = ()


def match(
    sources: Sequence[ModuleFamily],
    targets: Sequence[ModuleFamily],
    fits: Callable[[ModuleFamily, ModuleFamily], bool],
) -> Matched:
    """Pair the families; those that stay alone once more, one number at a time (fc1, fc2).

    What is then left on both sides is paired by shapes, if on one side nobody gave names (`Dense_0`) and each
    fits one and no other.
    """
    found = _by_name(sources, targets, fits)
    return _by_shape(found, fits) if found.extra and found.missing else found


def _by_name(
    sources: Sequence[ModuleFamily],
    targets: Sequence[ModuleFamily],
    fits: Callable[[ModuleFamily, ModuleFamily], bool],
) -> Matched:
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
    return replace(
        best,
        pairs=whole.pairs + best.pairs,
        by_elimination=whole.by_elimination + best.by_elimination,
    )


def match_whole(
    sources: Sequence[ModuleFamily],
    targets: Sequence[ModuleFamily],
    fits: Callable[[ModuleFamily, ModuleFamily], bool],
) -> Matched:
    """Pair the families: each with the one that is nearest by name, if it is the nearest of that, too.

    Args:
        sources: of the plan.
        targets: of the Flax model.
        fits: whether shapes, roles and numbers allow a pair.
    """
    weights = weights_of([*sources, *targets])
    near = {
        (one, other): found
        for one, source in enumerate(sources)
        for other, target in enumerate(targets)
        if fits(source, target) and (found := nearness(source, target, weights))
    }
    rivals = _Rivals(sources, targets, fits, weights)
    pairs: dict[int, int] = {}
    left: list[tuple[int, int]] = []
    while True:
        best_of_source, best_of_target = _best(near, 0), _best(near, 1)
        found_now = {
            one: its[0]
            for one, its in best_of_source.items()
            if len(its) == 1
            and best_of_target.get(its[0]) == [one]
            and near[one, its[0]].score >= max(_SAYS_NOTHING, rivals.best(one, its[0], pairs))
        }
        if not found_now:
            break
        pairs |= found_now
        left += [pair for pair in found_now.items() if near[pair].differs]
        taken = set(found_now.values())
        near = {
            (one, other): its
            for (one, other), its in near.items()
            if one not in found_now and other not in taken
        }
    problems = [
        f"{targets[other]} may be " + " or ".join(str(sources[one]) for one in its)
        for other, its in best_of_target.items()
        if len(its) > 1
    ]
    problems += [
        f"{sources[one]} may be " + " or ".join(str(targets[other]) for other in its)
        for one, its in best_of_source.items()
        if len(its) > 1
    ]
    taken = set(pairs.values())
    return Matched(
        tuple((sources[one], targets[other]) for one, other in pairs.items()),
        tuple(source for one, source in enumerate(sources) if one not in pairs),
        tuple(target for other, target in enumerate(targets) if other not in taken),
        tuple(problems),
        tuple((sources[one], targets[other]) for one, other in left),
    )


# Of names that a framework gives, and containers have: they say the kind of a module and nothing else.
_KINDS = frozenset({"dense", "conv", "norm", "embed", "block", "sequential", "#"})


def _by_shape(found: Matched, fits: Callable[[ModuleFamily, ModuleFamily], bool]) -> Matched:
    """All that is left, each the only one that fits the other; what was found, if that is not so."""
    mine = [part for family in found.extra for part in _single(family)]
    theirs = [part for family in found.missing for part in _single(family)]
    unnamed = any(
        all(_KINDS.issuperset(family.words) for family in side)
        for side in (found.extra, found.missing)
    )
    if not unnamed or len(mine) != len(theirs):
        return found
    fitting = [[other for other in theirs if fits(one, other)] for one in mine]
    chosen = [its[0] for its in fitting if len(its) == 1]
    if len(chosen) < len(mine) or len({id(one) for one in chosen}) < len(mine):
        return found
    pairs = tuple(zip(mine, chosen, strict=True))
    return replace(
        found,
        pairs=found.pairs + pairs,
        extra=(),
        missing=(),
        by_elimination=found.by_elimination + pairs,
    )


def _single(family: ModuleFamily) -> list[ModuleFamily]:
    words = tuple(word for word in family.words if word != "#")
    return [ModuleFamily(words, {(): roles}, family.kind) for roles in family.members.values()]


class _Rivals:
    """Parts of families (fc1 of fc1 and fc2) that may be nearer to one than any whole family is."""

    def __init__(
        self,
        sources: Sequence[ModuleFamily],
        targets: Sequence[ModuleFamily],
        fits: Callable[[ModuleFamily, ModuleFamily], bool],
        weights: Mapping[str, float],
    ) -> None:
        self._of_target = {
            (one, other): found.score
            for one, source in enumerate(sources)
            for part in _parts(source)
            for other, target in enumerate(targets)
            if fits(part, target) and (found := nearness(part, target, weights))
        }
        self._of_source = {
            (one, other): found.score
            for other, target in enumerate(targets)
            for part in _parts(target)
            for one, source in enumerate(sources)
            if fits(source, part) and (found := nearness(source, part, weights))
        }

    def best(self, one: int, other: int, pairs: Mapping[int, int]) -> float:
        """The nearness of the nearest part of another family, neither of which is paired yet."""
        taken = set(pairs.values())
        return max(
            [
                *(score for (mine, its), score in self._of_target.items()
                  if its == other and mine != one and mine not in pairs),
                *(score for (mine, its), score in self._of_source.items()
                  if mine == one and its != other and its not in taken),
            ],
            default=0.0,
        )  # fmt: skip


def _parts(family: ModuleFamily) -> list[ModuleFamily]:
    found = apart(family)
    return found if len(found) > 1 else []


def _best(near: Mapping[tuple[int, int], Nearness], side: int) -> dict[int, list[int]]:
    """Of each family the nearest on the other side; several if they are equally near.

    One that has all words in common that the nearest has, and more, is as near; where the nearest is called
    otherwise in part, so is one that has just these.
    """
    top: dict[int, Nearness] = {}
    for pair, its in near.items():
        if pair[side] not in top or its.score > top[pair[side]].score:
            top[pair[side]] = its
    best: dict[int, list[int]] = {}
    for pair, its in near.items():
        first = top[pair[side]]
        as_near = its.score > first.score - EQUAL
        if as_near or its.common > first.common or (first.differs and its.common == first.common):
            best.setdefault(pair[side], []).append(pair[1 - side])
    return best
