"""Repeated blocks as one: `layer_0` to `layer_11` stacked, as `nn.scan` and MaxText want them.

    params/encoder/layer_0/dense/kernel   (4, 8)
    params/encoder/layer_1/dense/kernel   (4, 8)   →   params/encoder/layer/dense/kernel   (2, 4, 8)

In nnx the number is a level of its own: `encoder/layer/0/…` becomes `encoder/layer/…`.
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
    """Blocks that are repeated.

    Attributes:
        path: of the stacked block ("params/encoder/layer").
        joint: what stands before the number: "_" (linen) or "/" (nnx).
        count: how many there are, numbered from 0.
    """

    path: str
    joint: str
    count: int

    def __str__(self) -> str:
        return f"{self.path}{self.joint}{{0..{self.count - 1}}}"


@dataclass(frozen=True)
class Scanned:
    """A plan whose repeated blocks are stacked.

    Attributes:
        plan: the plan.
        families: the blocks that were stacked.
        left: those that were not, with the reason, one line each.
    """

    plan: Plan
    families: tuple[RepeatedBlocks, ...]
    left: tuple[str, ...]


def scan_plan(plan: Plan, axis: int = 0, blocks: Sequence[str] | None = None) -> Scanned:
    """Stack the repeated blocks of a plan.

    Args:
        plan: for linen or nnx.
        axis: where in each array the blocks' number goes: 0 as `nn.scan`'s `variable_axes` mostly
            have it, 1 as MaxText's `param_scan_axis`. An array with fewer axes has it last.
        blocks: paths of the blocks to stack ("params/encoder/layer"), which must be alike; None: the
            outermost ones that are alike.

    Raises:
        MisfitError: blocks that were named differ, are not there or are made of joined tensors; or
            none is repeated. All reasons are named.
    """
    leaves, families, left = scan_leaves(plan.leaves, axis, blocks)
    if not families or (blocks is not None and left):
        raise MisfitError(
            f"{plan.checkpoint}: its blocks cannot be stacked",
            left or ("no blocks are repeated",),
            "name the blocks that are alike, or leave the layers apart",
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
    """The arrays with the repeated blocks stacked, the families, and those left with the reason."""
    leaves = tuple(leaves)
    found = _families(leaves)
    paths = [family.path for family in found]
    left = [f"{path} is no repeated block" for path in blocks or () if path not in paths]
    chosen: list[RepeatedBlocks] = []
    for family in found:
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
        its_own = next((one for one in chosen if _index(leaf.path, one) is not None), None)
        if its_own is None:
            stacked.append(leaf)
        else:
            members.setdefault(_without_number(leaf.path, its_own), []).append(leaf)
    for path, its in members.items():
        family = next(one for one in chosen if path.startswith(f"{one.path}/"))
        its.sort(key=lambda leaf: _index(leaf.path, family) or 0)
        stacked.append(_stack(path, its, axis))
    return tuple(stacked), tuple(chosen), tuple(left)


def _families(leaves: Sequence[PlannedLeaf]) -> list[RepeatedBlocks]:
    """The outermost first."""
    numbers: dict[tuple[str, str], set[int]] = {}
    for leaf in leaves:
        for match in _NUMBERED.finditer(leaf.path):
            path = leaf.path[: match.start("joint")]
            numbers.setdefault((path, match["joint"]), set()).add(int(match["number"]))
    found = [
        RepeatedBlocks(path, joint, len(its))
        for (path, joint), its in numbers.items()
        if len(its) > 1 and its == set(range(len(its)))
    ]
    return sorted(found, key=lambda family: family.path.count("/"))


def _is_inside(family: RepeatedBlocks, other: RepeatedBlocks) -> bool:
    return re.match(rf"{re.escape(other.path + other.joint)}\d+/", f"{family.path}/") is not None


def _index(path: str, family: RepeatedBlocks) -> int | None:
    match = re.match(rf"{re.escape(family.path + family.joint)}(\d+)/", path)
    return None if match is None else int(match[1])


def _without_number(path: str, family: RepeatedBlocks) -> str:
    rest = path.removeprefix(f"{family.path}{family.joint}").partition("/")[2]
    return f"{family.path}/{rest}"


def _difference(leaves: Sequence[PlannedLeaf], family: RepeatedBlocks) -> str:
    """In what the blocks differ, or why they cannot be stacked; "" if they can."""
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
