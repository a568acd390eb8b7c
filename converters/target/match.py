"""Matching of modules of a plan and of the target by name, as far as shapes and numbers allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from converters.target.modules import ModuleFamily, apart
from converters.target.nearness import EQUAL, Nearness, nearness, weights_of

# Below this nearness a name says nothing, and a pair is left to the user.
_SAYS_NOTHING = 0.15


@dataclass(frozen=True)
class Matched:
    """Result of a matching.

    Attributes:
        pairs: pairs of a family of the plan and a family of the target.
        extra: families of the plan without a partner.
        missing: families of the target without a partner.
        problems: ambiguous families of the target, one line each.
        by_elimination: pairs with partly different names, the only ones of their kind left.
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
    """Pair the families; unpaired families are tried again one number at a time (fc1, fc2).

    The rest on both sides is paired by shapes, if one side has only automatic names (`Dense_0`) and
    each family fits exactly one other.
    """
    matched = _by_name(sources, targets, fits)
    return _by_shape(matched, fits) if matched.extra and matched.missing else matched


def _by_name(
    sources: Sequence[ModuleFamily],
    targets: Sequence[ModuleFamily],
    fits: Callable[[ModuleFamily, ModuleFamily], bool],
) -> Matched:
    matched_whole = match_whole(sources, targets, fits)
    if not matched_whole.extra or not matched_whole.missing:
        return matched_whole
    source_parts = [part for family in matched_whole.extra for part in apart(family)]
    target_parts = [part for family in matched_whole.missing for part in apart(family)]
    finer = [
        match_whole(source_parts, matched_whole.missing, fits),
        match_whole(matched_whole.extra, target_parts, fits),
        match_whole(source_parts, target_parts, fits),
    ]
    best = min(finer, key=lambda candidate: len(candidate.extra) + len(candidate.missing))
    if best.extra or best.missing:  # it explains no more than before
        return matched_whole
    return replace(
        best,
        pairs=matched_whole.pairs + best.pairs,
        by_elimination=matched_whole.by_elimination + best.by_elimination,
    )


def match_whole(
    sources: Sequence[ModuleFamily],
    targets: Sequence[ModuleFamily],
    fits: Callable[[ModuleFamily, ModuleFamily], bool],
) -> Matched:
    """Pair each family with the nearest by name, if the nearness is mutual.

    Args:
        sources: the families of the plan.
        targets: the families of the Flax model.
        fits: whether shapes, roles and numbers allow a pair.
    """
    weights = weights_of([*sources, *targets])
    near = {
        (index, other): near_pair
        for index, source in enumerate(sources)
        for other, target in enumerate(targets)
        if fits(source, target) and (near_pair := nearness(source, target, weights))
    }
    rivals = _Rivals(sources, targets, fits, weights)
    pairs: dict[int, int] = {}
    left: list[tuple[int, int]] = []
    while True:
        best_of_source, best_of_target = _best(near, 0), _best(near, 1)
        found_now = {
            index: nearest[0]
            for index, nearest in best_of_source.items()
            if len(nearest) == 1
            and best_of_target.get(nearest[0]) == [index]
            and near[index, nearest[0]].score
            >= max(_SAYS_NOTHING, rivals.best(index, nearest[0], pairs))
        }
        if not found_now:
            break
        pairs |= found_now
        left += [pair for pair in found_now.items() if near[pair].differs]
        taken = set(found_now.values())
        near = {
            (index, other): near_pair
            for (index, other), near_pair in near.items()
            if index not in found_now and other not in taken
        }
    problems = [
        f"{targets[other]} may be " + " or ".join(str(sources[source]) for source in nearest)
        for other, nearest in best_of_target.items()
        if len(nearest) > 1
    ]
    problems += [
        f"{sources[index]} may be " + " or ".join(str(targets[other]) for other in nearest)
        for index, nearest in best_of_source.items()
        if len(nearest) > 1
    ]
    taken = set(pairs.values())
    return Matched(
        tuple((sources[index], targets[other]) for index, other in pairs.items()),
        tuple(source for index, source in enumerate(sources) if index not in pairs),
        tuple(target for other, target in enumerate(targets) if other not in taken),
        tuple(problems),
        tuple((sources[index], targets[other]) for index, other in left),
    )


# Names given by a framework or a container: they show only the kind of a module.
_KINDS = frozenset({"dense", "conv", "norm", "embed", "block", "sequential", "#"})


def _by_shape(matched: Matched, fits: Callable[[ModuleFamily, ModuleFamily], bool]) -> Matched:
    """Pair all remaining families if each is the only one that fits the other; else return the input."""
    source_families = [part for family in matched.extra for part in _single(family)]
    target_families = [part for family in matched.missing for part in _single(family)]
    unnamed = any(
        all(_KINDS.issuperset(family.words) for family in side)
        for side in (matched.extra, matched.missing)
    )
    if not unnamed or len(source_families) != len(target_families):
        return matched
    fitting = [
        [other for other in target_families if fits(source, other)] for source in source_families
    ]
    chosen = [candidates[0] for candidates in fitting if len(candidates) == 1]
    if len(chosen) < len(source_families) or len({id(target) for target in chosen}) < len(
        source_families
    ):
        return matched
    pairs = tuple(zip(source_families, chosen, strict=True))
    return replace(
        matched,
        pairs=matched.pairs + pairs,
        extra=(),
        missing=(),
        by_elimination=matched.by_elimination + pairs,
    )


def _single(family: ModuleFamily) -> list[ModuleFamily]:
    words = tuple(word for word in family.words if word != "#")
    return [ModuleFamily(words, {(): roles}, family.kind) for roles in family.members.values()]


class _Rivals:
    """Parts of families (fc1 of fc1 and fc2) that may be nearer to a family than any whole family is."""

    def __init__(
        self,
        sources: Sequence[ModuleFamily],
        targets: Sequence[ModuleFamily],
        fits: Callable[[ModuleFamily, ModuleFamily], bool],
        weights: Mapping[str, float],
    ) -> None:
        self._of_target = {
            (index, other): near_pair.score
            for index, source in enumerate(sources)
            for part in _parts(source)
            for other, target in enumerate(targets)
            if fits(part, target) and (near_pair := nearness(part, target, weights))
        }
        self._of_source = {
            (index, other): near_pair.score
            for other, target in enumerate(targets)
            for part in _parts(target)
            for index, source in enumerate(sources)
            if fits(source, part) and (near_pair := nearness(source, part, weights))
        }

    def best(self, index: int, other: int, pairs: Mapping[int, int]) -> float:
        """Return the nearness of the nearest part of another unpaired family."""
        taken = set(pairs.values())
        return max(
            [
                *(score for (near_index, far_index), score in self._of_target.items()
                  if far_index == other and near_index != index and near_index not in pairs),
                *(score for (near_index, far_index), score in self._of_source.items()
                  if near_index == index and far_index != other and far_index not in taken),
            ],
            default=0.0,
        )  # fmt: skip


def _parts(family: ModuleFamily) -> list[ModuleFamily]:
    parts = apart(family)
    return parts if len(parts) > 1 else []


def _best(near: Mapping[tuple[int, int], Nearness], side: int) -> dict[int, list[int]]:
    """Return for each family the nearest families on the other side; several if they are equally near.

    A family with all the common words of the nearest, and more, is equally near. If the nearest has
    a partly different name, a family with just these words is also equally near.
    """
    top: dict[int, Nearness] = {}
    for pair, near_pair in near.items():
        if pair[side] not in top or near_pair.score > top[pair[side]].score:
            top[pair[side]] = near_pair
    best: dict[int, list[int]] = {}
    for pair, near_pair in near.items():
        first = top[pair[side]]
        as_near = near_pair.score > first.score - EQUAL
        if (
            as_near
            or near_pair.common > first.common
            or (first.differs and near_pair.common == first.common)
        ):
            best.setdefault(pair[side], []).append(pair[1 - side])
    return best
