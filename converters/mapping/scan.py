"""Stacking of repeated blocks: `layer_0` to `layer_11` as one array, as in `nn.scan` and MaxText.

    params/encoder/layer_0/dense/kernel   (4, 8)
    params/encoder/layer_1/dense/kernel   (4, 8)   →   params/encoder/layer/dense/kernel   (2, 4, 8)

In nnx the number is a separate level: `encoder/layer/0/…` becomes `encoder/layer/…`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from converters.checkpoint.reader import TensorInfo
from converters.errors import MisfitError
from converters.layers.join import ALONE, Stack
from converters.mapping.leaves import PlannedLeaf
from converters.mapping.plan import Plan, Row

# `name_3` or `name/3`, at the end of a level.
_NUMBERED = re.compile(r"(?<![^/])(?P<name>[^/]*[^/\d])(?P<joint>[_/])(?P<number>\d+)(?=/)")


@dataclass(frozen=True)
class RepeatedBlocks:
    """Repeated blocks.

    Attributes:
        path: of the stacked block ("params/encoder/layer").
        joint: the separator before the number: "_" (linen) or "/" (nnx).
        count: the number of blocks, numbered from 0.
    """

    path: str
    joint: str
    count: int

    def __str__(self) -> str:
        return f"{self.path}{self.joint}{{0..{self.count - 1}}}"


@dataclass(frozen=True)
class Scanned:
    """Plan whose repeated blocks are stacked.

    Attributes:
        plan: the plan.
        families: the blocks that were stacked.
        left: the blocks that were not stacked, with the reason, one line each.
    """

    plan: Plan
    families: tuple[RepeatedBlocks, ...]
    left: tuple[str, ...]


def scan_plan(plan: Plan, axis: int = 0, blocks: Sequence[str] | None = None) -> Scanned:
    """Stack the repeated blocks of a plan.

    Args:
        plan: a plan for linen or nnx.
        axis: the position of the new axis in each array: 0 as usual for `nn.scan`'s
            `variable_axes`, 1 as MaxText's `param_scan_axis`. In an array with fewer axes it is
            last.
        blocks: paths of the blocks to stack ("params/encoder/layer"), which must be alike; None for
            the outermost blocks that are alike.

    Raises:
        MisfitError: the named blocks differ, are missing or have joined tensors; or no block is
            repeated. The message lists all reasons.
    """
    leaves, families, left = scan_leaves(plan.leaves, axis, blocks)
    if not families or (blocks is not None and left):
        raise MisfitError(
            f"{plan.checkpoint}: its blocks cannot be stacked",
            left or ("no blocks are repeated",),
            "name the blocks that are the same, or leave the layers separate",
        )
    places = {
        piece.key: (leaf.path, leaf.join, index)
        for leaf in leaves
        if isinstance(leaf.join, Stack)
        for index, piece in enumerate(leaf.pieces)
    }
    old = {leaf.path: leaf for leaf in plan.leaves}
    moved = {
        path: places[leaf.pieces[0].key]
        for path, leaf in old.items()
        if any(_index(path, family) is not None for family in families)
    }
    rows = tuple(_moved(row, moved) for row in plan.rows)
    return Scanned(replace(plan, rows=rows, leaves=leaves), families, left)


def scan_leaves(
    leaves: Iterable[PlannedLeaf], axis: int = 0, blocks: Sequence[str] | None = None
) -> tuple[tuple[PlannedLeaf, ...], tuple[RepeatedBlocks, ...], tuple[str, ...]]:
    """Return the arrays with the repeated blocks stacked, the families, and the unstacked blocks with
    the reason."""
    leaves = tuple(leaves)
    candidates = _families(leaves)
    paths = [family.path for family in candidates]
    left = [f"{path} is no repeated block" for path in blocks or () if path not in paths]
    chosen: list[RepeatedBlocks] = []
    for family in candidates:
        if blocks is not None and family.path not in blocks:
            continue
        if blocks is None and any(_is_inside(family, other) for other in chosen):
            continue
        reason = _difference(leaves, family)
        if reason:
            left.append(f"{family}: {reason}")
        else:
            chosen.append(family)
    taken = {leaf.path for leaf in leaves}
    for family in list(chosen):
        clash = sorted(path for path in taken if path.startswith(f"{family.path}/"))
        if family.joint == "_" and clash:
            left.append(f"{family}: {clash[0]} is in the way")
            chosen.remove(family)
    stacked: list[PlannedLeaf] = []
    members: dict[str, list[PlannedLeaf]] = {}
    for leaf in leaves:
        its_own = next(
            (candidate for candidate in chosen if _index(leaf.path, candidate) is not None), None
        )
        if its_own is None:
            stacked.append(leaf)
        else:
            members.setdefault(_without_number(leaf.path, its_own), []).append(leaf)
    for path, copies in members.items():
        family = next(candidate for candidate in chosen if path.startswith(f"{candidate.path}/"))
        copies.sort(key=lambda leaf: _index(leaf.path, family) or 0)
        stacked.append(_stack(path, copies, axis))
    return tuple(stacked), tuple(chosen), tuple(left)


def _families(leaves: Sequence[PlannedLeaf]) -> list[RepeatedBlocks]:
    """Return the repeated blocks, outermost first."""
    numbers: dict[tuple[str, str], set[int]] = {}
    for leaf in leaves:
        for match in _NUMBERED.finditer(leaf.path):
            path = leaf.path[: match.start("joint")]
            numbers.setdefault((path, match["joint"]), set()).add(int(match["number"]))
    families = [
        RepeatedBlocks(path, joint, len(indices))
        for (path, joint), indices in numbers.items()
        if len(indices) > 1 and indices == set(range(len(indices)))
    ]
    return sorted(families, key=lambda family: family.path.count("/"))


def _is_inside(family: RepeatedBlocks, other: RepeatedBlocks) -> bool:
    return re.match(rf"{re.escape(other.path + other.joint)}\d+/", f"{family.path}/") is not None


def _index(path: str, family: RepeatedBlocks) -> int | None:
    match = re.match(rf"{re.escape(family.path + family.joint)}(\d+)/", path)
    return None if match is None else int(match[1])


def _without_number(path: str, family: RepeatedBlocks) -> str:
    rest = path.removeprefix(f"{family.path}{family.joint}").partition("/")[2]
    return f"{family.path}/{rest}"


def _difference(leaves: Sequence[PlannedLeaf], family: RepeatedBlocks) -> str:
    """Return how the blocks differ, or why they cannot be stacked, or ""."""
    blocks: dict[int, dict[str, PlannedLeaf]] = {}
    for leaf in leaves:
        index = _index(leaf.path, family)
        if index is not None:
            blocks.setdefault(index, {})[_without_number(leaf.path, family)] = leaf
    first = blocks[0]
    for index, block in sorted(blocks.items()):
        for path in sorted(first.keys() ^ block.keys()):
            owner = 0 if path in first else index
            return f"{path} is in block {owner} and not in block {index if owner == 0 else 0}"
        for path, leaf in block.items():
            if leaf.info != first[path].info:
                return f"{path} is {_shown(first[path].info)} in 0, {_shown(leaf.info)} in {index}"
            if leaf.join != ALONE:
                return f"{path} is joined ({leaf.join}) of several torch tensors already"
    return ""


def _shown(info: TensorInfo) -> str:
    return f"{info.dtype} {info.shape}"


def _stack(path: str, leaves: Sequence[PlannedLeaf], axis: int) -> PlannedLeaf:
    shapes = [leaf.info.shape for leaf in leaves]
    join = Stack(min(axis, len(shapes[0])))
    pieces = tuple(leaf.pieces[0] for leaf in leaves)
    return PlannedLeaf(path, TensorInfo(join.shape(shapes), leaves[0].info.dtype), pieces, join)


def _moved(row: Row, moved: Mapping[str, tuple[str, Stack, int]]) -> Row:
    targets = []
    for target in row.targets:
        if target.path in moved:
            path, join, index = moved[target.path]
            target = replace(target, path=path, join=join, index=index)
        targets.append(target)
    return replace(row, targets=tuple(targets))
