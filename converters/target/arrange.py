"""Arrays of a plan in the arrangement of an existing Flax model, once the assignment is known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from converters.checkpoint.reader import TensorInfo
from converters.errors import MisfitError
from converters.layers.join import ALONE, Join, Stack
from converters.layers.layout import UNCHANGED, Layout, Permute, chain
from converters.mapping import Outcome, Plan
from converters.mapping.leaves import Piece, PlannedLeaf
from converters.mapping.module_tree import Target
from converters.mapping.plan import Row

_OWNER = re.compile(r"a parameter of (\w+) itself")
EVIDENCE = "fitted to the target by name and shape"
TIED = "params/tied:/"  # no path of a module has a colon
TIED_KINDS = {"embedding": "Embedding", "kernel": "Linear"}


@dataclass(frozen=True)
class Fitted:
    """Plan whose arrays are those of a Flax model.

    Attributes:
        plan: the plan.
        moved: old path in the plan → path in the target.
        notes: notes for the user, one line each.
    """

    plan: Plan
    moved: Mapping[str, str]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class StackedLayout:
    """Way to make an array of the target: a layout, and the axis of the stack, if any."""

    layout: Layout
    axis: int | None = None


@dataclass(frozen=True)
class TargetArray:
    """Sources of an array of the target.

    Attributes:
        sources: paths in the plan, several where they are stacked.
        way: the layout and the stack axis.
    """

    sources: tuple[str, ...]
    way: StackedLayout


def tied_leaves(
    plan: Plan, dropped: Mapping[str, str], *, first: bool = False
) -> Iterator[tuple[PlannedLeaf, str]]:
    """Yield keys that share an embedding's tensor as separate arrays: a table, or a Linear's kernel.

    Args:
        plan: the plan of the checkpoint.
        dropped: keys dropped by the user.
        first: also yield the first key of each such tensor, in the form it lacks in the plan.
    """
    owners = {row.targets: row for row in plan.mapped}
    rows = [(row, owners[row.targets]) for row in plan.of(Outcome.TIED)]
    if first:
        rows += [(owner, owner) for owner in {owner.key: owner for _, owner in rows}.values()]
    for row, owner in rows:
        kind, shape = owner.kind, row.shape or ()
        if row.key in dropped or len(shape) != 2 or kind not in TIED_KINDS.values():
            continue
        module = row.key.rpartition(".")[0].replace(".", "/")
        for name, layout in (("embedding", UNCHANGED), ("kernel", Permute((1, 0)))):
            if row is owner and TIED_KINDS[name] == kind:
                continue
            info = TensorInfo(layout.shape(shape), row.dtype or "")
            piece = Piece(row.key, layout)
            yield PlannedLeaf(f"{TIED}{module}/{name}", info, (piece,)), TIED_KINDS[name]


def kinds_of(plan: Plan) -> dict[str, str]:
    """Return path in the plan → layer kind; for a user's own parameters, with their class."""
    kinds: dict[str, str] = {}
    for row in plan.mapped:
        owner = _OWNER.search(row.note)
        for path in row.paths:
            kinds[path] = f"{row.kind} {owner[1]}" if owner else row.kind
    return kinds


def arranged(
    plan: Plan,
    placed: Mapping[str, TargetArray],
    leaves: Mapping[str, PlannedLeaf],
    target: Mapping[str, TensorInfo],
    dropped: Mapping[str, str],
    evidence: str = EVIDENCE,
) -> Fitted:
    """Return the plan with the arrays of the target.

    Args:
        plan: a plan without refused rows.
        placed: path in the target → its sources.
        leaves: path in the plan, or of a derived array (`tied_leaves`, parts) → the array.
        target: path → shape and dtype of the target's arrays.
        dropped: torch key → the expression by which the user dropped it.
        evidence: the basis, for the report.

    Raises:
        MisfitError: an array is already joined from torch tensors and would have to be rearranged.
    """
    leaf_by_path = {
        path: _leaf(path, item.sources, item.way, leaves) for path, item in placed.items()
    }
    origins = {path: item.sources for path, item in placed.items()}
    return _fitted(plan, leaf_by_path, origins, dropped, target, evidence)


def _leaf(
    path: str, sources: Sequence[str], way: StackedLayout, leaves: Mapping[str, PlannedLeaf]
) -> PlannedLeaf:
    """Return an array of the target, made from arrays of the plan.

    Raises:
        MisfitError: the array is already joined from torch tensors and would have to be rearranged.
    """
    before = [leaves[source] for source in sources]
    if way.layout == UNCHANGED and way.axis is None:
        return replace(before[0], path=path)
    joined = [leaf.path for leaf in before if leaf.join != ALONE]
    if joined:
        raise MisfitError(
            f"{path} cannot be made",
            [f"{source} is joined of several torch tensors already" for source in joined],
            "edit the mapping",
        )
    pieces = tuple(
        Piece(piece.key, chain((piece.layout, way.layout)), piece.part)
        for leaf in before
        for piece in leaf.pieces
    )
    join: Join = ALONE if way.axis is None else Stack(way.axis)
    shapes = [way.layout.shape(leaf.info.shape) for leaf in before]
    return PlannedLeaf(path, TensorInfo(join.shape(shapes), before[0].info.dtype), pieces, join)


def _fitted(
    plan: Plan,
    leaf_by_path: Mapping[str, PlannedLeaf],
    origins: Mapping[str, Sequence[str]],
    dropped: Mapping[str, str],
    target: Mapping[str, TensorInfo],
    evidence: str,
) -> Fitted:
    moved = {old: path for path, old_paths in origins.items() for old in old_paths}
    places = _places(leaf_by_path.values())
    rows = tuple(_row(row, places, dropped, plan, evidence) for row in plan.rows)
    notes = [
        f"{leaf.path} is {leaf.info.dtype} as in the checkpoint; the target has {target[path].dtype}"
        for path, leaf in leaf_by_path.items()
        if leaf.info.dtype != target[path].dtype
    ]
    if len(notes) > 5:
        notes = [*notes[:5], f"and {len(notes) - 5} more of another dtype (--dtype casts)"]
    done = replace(plan, rows=rows, leaves=tuple(leaf_by_path.values()))
    return Fitted(done, moved, tuple(notes))


def _places(leaves: Iterable[PlannedLeaf]) -> dict[str, tuple[Target, ...]]:
    """Return torch key → the targets of its pieces."""
    targets: dict[str, list[Target]] = {}
    for leaf in leaves:
        for index, piece in enumerate(leaf.pieces):
            targets.setdefault(piece.key, []).append(
                Target(leaf.path, piece.layout, piece.part, leaf.join, index)
            )
    return {key: tuple(target_list) for key, target_list in targets.items()}


def _row(
    row: Row,
    places: Mapping[str, tuple[Target, ...]],
    dropped: Mapping[str, str],
    plan: Plan,
    evidence: str,
) -> Row:
    if row.key in dropped:
        reason = f"dropped by the user ({dropped[row.key]})"
        return replace(row, outcome=Outcome.DROPPED, targets=(), note=reason)
    if row.outcome is Outcome.MAPPED:
        return replace(row, targets=places[row.key], evidence=evidence)
    if row.outcome is Outcome.TIED and row.key in places:
        note = f"{row.note} in torch, an array of its own in the target"
        return replace(row, outcome=Outcome.MAPPED, targets=places[row.key], note=note)
    if row.outcome is Outcome.TIED:
        owner = next(other.key for other in plan.mapped if other.targets == row.targets)
        if owner in places:
            return replace(row, targets=places[owner])
        return replace(row, outcome=Outcome.DROPPED, targets=(), note=f"tied to {owner}, dropped")
    return row
