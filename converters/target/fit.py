"""Fit of a plan to an existing Flax model: every array at its path, or a list of the mismatches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from converters.checkpoint.reader import TensorInfo
from converters.errors import MisfitError
from converters.mapping import Outcome, Plan, Row
from converters.mapping.leaves import PlannedLeaf
from converters.target.arrange import (
    TIED,
    TIED_KINDS,
    Fitted,
    StackedLayout,
    TargetArray,
    arranged,
    kinds_of,
    tied_leaves,
)
from converters.target.fused import like_target
from converters.target.layouts import permitted
from converters.target.match import match, match_whole
from converters.target.modules import ModuleFamily, families

Numbers = tuple[int, ...]


def fit_plan(
    plan: Plan,
    target: Mapping[str, TensorInfo],
    *,
    scan_axis: int | None = None,
    drop: Sequence[str] = (),
) -> Fitted:
    """Give every array of a plan its path in a Flax model.

    Names are compared word by word (q_proj and query are equal), and numbers by their order. A
    layout is tried only if the layer kind permits it (a Linear's rows as heads; stacked layers).
    Equally good candidates, and arrays without a matching name, are refused.

    Args:
        plan: a plan without refused rows.
        target: path → shape and dtype of the model's arrays (`target_shapes`).
        scan_axis: the axis of stacked layers, if the shapes leave it open.
        drop: regular expressions of torch keys that the target does not need.

    Raises:
        MisfitError: arrays are missing, extra, of a wrong shape or ambiguous; the message names all.
    """
    dropped = {
        row.key: _matching(row.key, drop)
        for row in plan.rows
        if row.outcome in (Outcome.MAPPED, Outcome.TIED) and _matching(row.key, drop)
    }
    leaves = {
        leaf.path: leaf
        for leaf in plan.leaves
        if not all(piece.key in dropped for piece in leaf.pieces)
    }
    kinds = kinds_of(plan)
    leaves, origins = like_target(leaves, target)
    kinds |= {path: kinds[origin] for path, origin in origins.items()}
    infos = {path: leaf.info for path, leaf in leaves.items()}
    sources, targets = families(infos), families(target)

    def fits(source: ModuleFamily, other: ModuleFamily) -> bool:
        return _ways(source, other, infos, target, kinds) is not None

    matched = match(sources, targets, fits)
    for leaf, kind in tied_leaves(
        plan, dropped
    ):  # a target may keep separate arrays where torch shares one
        leaves[leaf.path], kinds[leaf.path], infos[leaf.path] = leaf, kind, leaf.info
    for name in TIED_KINDS:
        shared = {
            path: info
            for path, info in infos.items()
            if path.startswith(TIED) and path.endswith(f"/{name}")
        }
        also = match_whole(families(shared), matched.missing, fits)
        matched = replace(matched, pairs=matched.pairs + also.pairs, missing=also.missing)
    problems = list(matched.problems)
    ways: dict[str, tuple[list[str], list[StackedLayout]]] = {}
    for source, other in matched.pairs:
        ways |= _ways(source, other, infos, target, kinds) or {}
    problems += _left(matched.extra, matched.missing, infos, target)
    chosen, undecided = _chosen(ways, leaves, kinds, scan_axis)
    problems += undecided
    if problems:
        raise MisfitError(
            f"{plan.checkpoint} does not fit the target",
            problems,
            "run both models to match the layers (migrate weights --inputs), drop keys that the "
            "target does not use (--drop), or write a mapping",
        )
    placed = {path: TargetArray(tuple(ways[path][0]), chosen[path]) for path in target}
    done = arranged(plan, placed, leaves, target, dropped)
    left = tuple(
        f"{other} is {source}: called otherwise, and all else has its place"
        for source, other in matched.by_elimination
    )
    return replace(done, notes=done.notes + left)


def without(plan: Plan, drop: Sequence[str]) -> Plan:
    """Return the plan in which refused keys that the user drops (`drop` of `fit_plan`) are dropped."""

    def left(row: Row) -> Row:
        pattern = _matching(row.key, drop)
        if row.outcome is not Outcome.REFUSED or row.shape is None or not pattern:
            return row
        return replace(row, outcome=Outcome.DROPPED, note=f"dropped by the user ({pattern})")

    return replace(plan, rows=tuple(map(left, plan.rows)))


def _ways(
    source: ModuleFamily,
    target: ModuleFamily,
    infos: Mapping[str, TensorInfo],
    wanted: Mapping[str, TensorInfo],
    kinds: Mapping[str, str],
) -> dict[str, tuple[list[str], list[StackedLayout]]] | None:
    """Return path in the target → paths in the plan and ways to make it from them; None if they do not
    fit."""
    if source.roles != target.roles:
        return None
    ways: dict[str, tuple[list[str], list[StackedLayout]]] = {}
    for numbers, members in _aligned(source, target) or ():
        for role, path in target.members[numbers].items():
            sources = [source.members[member][role] for member in members]
            kind = kinds[sources[0]].partition(" ")[0]
            shapes = {infos[path_in_plan].shape for path_in_plan in sources}
            if len(shapes) > 1:
                return None
            candidates = list(_made(kind, role, shapes.pop(), wanted[path].shape, len(sources)))
            if not candidates:
                return None
            ways[path] = (sources, candidates)
    return ways or None


def _aligned(
    source: ModuleFamily, target: ModuleFamily
) -> list[tuple[Numbers, list[Numbers]]] | None:
    """Return numbers in the target → those in the plan, by their order; several if layers are stacked."""
    source_numbers, target_numbers = sorted(source.members), sorted(target.members)
    if len(source_numbers) == len(target_numbers):
        if len(source_numbers) == 1:
            return [(target_numbers[0], source_numbers)]
        ranks, others = _ranked(source_numbers), _ranked(target_numbers)
        if ranks == others:
            return [
                (other, [numbers])
                for numbers, other in zip(source_numbers, target_numbers, strict=True)
            ]
        return None
    depth = len(source_numbers[0])
    for level in range(depth):  # the level that is stacked
        stacked: dict[Numbers, list[Numbers]] = {}
        for numbers in source_numbers:
            rest = (*numbers[:level], *numbers[level + 1 :])
            stacked.setdefault(rest, []).append(numbers)
        lengths = {len(group) for group in stacked.values()}
        rest_ranks, others = _ranked(sorted(stacked)), _ranked(target_numbers)
        if len(lengths) == 1 and (rest_ranks == others or len(stacked) == len(target_numbers) == 1):
            return [
                (other, stacked[rest])
                for rest, other in zip(sorted(stacked), target_numbers, strict=True)
            ]
    return None


def _ranked(numbers: Sequence[Numbers]) -> list[Numbers]:
    """Return each number as its rank at its level: 1, 2 and 0, 1 are equal."""
    orders = [
        {value: rank for rank, value in enumerate(sorted(set(column)))}
        for column in zip(*numbers, strict=True)
    ]
    return [
        tuple(order[value] for order, value in zip(orders, levels, strict=True))
        for levels in numbers
    ]


def _made(
    kind: str, role: str, shape: tuple[int, ...], wanted: tuple[int, ...], count: int
) -> Iterator[StackedLayout]:
    if count == 1:
        for layout in permitted(kind, role, shape, wanted):
            yield StackedLayout(layout)
        return
    for axis, side in enumerate(wanted):
        if side == count:
            rest = (*wanted[:axis], *wanted[axis + 1 :])
            for layout in permitted(kind, role, shape, rest):
                yield StackedLayout(layout, axis)


def _chosen(
    ways: Mapping[str, tuple[list[str], list[StackedLayout]]],
    leaves: Mapping[str, PlannedLeaf],
    kinds: Mapping[str, str],
    scan_axis: int | None,
) -> tuple[dict[str, StackedLayout], list[str]]:
    """Return one way for each array: if shapes allow several, the one of unambiguous arrays of its kind."""
    axes = {
        frozenset(way.axis for way in candidates if way.axis is not None)
        for _, candidates in ways.values()
        if candidates[0].axis is not None
    }
    common = frozenset.intersection(*axes) if axes else frozenset()
    axis = scan_axis if scan_axis is not None else (min(common) if len(common) == 1 else None)
    turned: dict[str, set[bool]] = {}
    for paths, possible in ways.values():
        if len(leaves[paths[0]].info.shape) > 1 and len({_is_turned(way) for way in possible}) == 1:
            turned.setdefault(kinds[paths[0]], set()).add(_is_turned(possible[0]))
    chosen: dict[str, StackedLayout] = {}
    problems: list[str] = []
    for path, (paths, possible) in ways.items():
        left = possible
        if len({way.axis for way in left}) > 1:
            left = [way for way in left if way.axis == axis]
        known = turned.get(kinds[paths[0]], set())
        if len(left) > 1 and len(known) == 1:
            left = [way for way in left if _is_turned(way) in known]
        if len(left) == 1:
            chosen[path] = left[0]
        elif len({way.axis for way in possible}) > 1:
            problems.append(f"{path}: its shape does not say along which axis layers are stacked")
        else:
            problems.append(f"{path}: square, so whether it is {paths[0]} transposed is unknown")
    return chosen, problems


def _is_turned(way: StackedLayout) -> bool:
    return "transpose" in str(way.layout)


def _left(
    extra: Sequence[ModuleFamily],
    missing: Sequence[ModuleFamily],
    infos: Mapping[str, TensorInfo],
    wanted: Mapping[str, TensorInfo],
) -> list[str]:
    """Return the missing, extra and misshaped arrays, one line each."""
    by_words = {(source.words, source.roles): source for source in extra}
    lines: list[str] = []
    for target in missing:
        namesake = by_words.get((target.words, target.roles))
        for numbers, roles in target.members.items():
            for role, path in roles.items():
                namesake_path = namesake.members.get(numbers, {}).get(role) if namesake else None
                if namesake_path is not None and infos[namesake_path].shape != wanted[path].shape:
                    lines.append(
                        f"wrong shape: {path} is {wanted[path].shape}, "
                        f"{namesake_path} {infos[namesake_path].shape}"
                    )
                elif namesake_path is None:
                    lines.append(f"missing: nothing for {path} {wanted[path].shape}")
    for source in extra:
        for roles in source.members.values():
            lines += [f"extra: no place for {path} {infos[path].shape}" for path in roles.values()]
    return lines


def _matching(key: str, patterns: Sequence[str]) -> str:
    return next((pattern for pattern in patterns if re.search(pattern, key)), "")
