"""The arrays of a plan in the places of a Flax model that exists, once it is known what goes where."""

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
    """A plan whose arrays are those of a Flax model.

    Attributes:
        plan: the plan.
        moved: path in the plan before → path in the target.
        notes: what to know, one line each.
    """

    plan: Plan
    moved: Mapping[str, str]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class StackedLayout:
    """One way to make an array of the target: a layout, and the axis of the stack if it is one."""

    layout: Layout
    axis: int | None = None


@dataclass(frozen=True)
class TargetArray:
    """What an array of the target is made of.

    Attributes:
        sources: paths in the plan, several where they are stacked.
        way: how.
    """

    sources: tuple[str, ...]
    way: StackedLayout


def tied_leaves(
    plan: Plan, dropped: Mapping[str, str], *, first: bool = False
) -> Iterator[tuple[PlannedLeaf, str]]:
    """Keys that share the tensor of an embedding, as arrays of their own: a table, or a Linear's kernel.

    Args:
        plan: of the checkpoint.
        dropped: keys that the user left out.
        first: also the first key of each such tensor, as what it is not in the plan.
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
    """Path in the plan → kind of the layer, for a user's own parameters with the class they belong to."""
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
    """The plan with the arrays of the target.

    Args:
        plan: nothing in it refused.
        placed: path in the target → what it is made of.
        leaves: path in the plan, or of what was made of it (`tied_leaves`, parts) → the array.
        target: path → shape and dtype of the target's arrays.
        dropped: torch key → the expression by which the user left it out.
        evidence: what says so.

    Raises:
        MisfitError: an array is joined of torch tensors already and would have to be arranged anew.
    """
    made = {path: _leaf(path, one.sources, one.way, leaves) for path, one in placed.items()}
    origins = {path: one.sources for path, one in placed.items()}
    return _fitted(plan, made, origins, dropped, target, evidence)


def _leaf(
    path: str, its: Sequence[str], way: StackedLayout, leaves: Mapping[str, PlannedLeaf]
) -> PlannedLeaf:
    """An array of the target, from those of the plan.

    Raises:
        MisfitError: it is joined of torch tensors already and would have to be arranged anew.
    """
    before = [leaves[one] for one in its]
    if way.layout == UNCHANGED and way.axis is None:
        return replace(before[0], path=path)
    joined = [leaf.path for leaf in before if leaf.join != ALONE]
    if joined:
        raise MisfitError(
            f"{path} cannot be made",
            [f"{one} is joined of several torch tensors already" for one in joined],
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
    made: Mapping[str, PlannedLeaf],
    origins: Mapping[str, Sequence[str]],
    dropped: Mapping[str, str],
    target: Mapping[str, TensorInfo],
    evidence: str,
) -> Fitted:
    moved = {old: path for path, its in origins.items() for old in its}
    places = _places(made.values())
    rows = tuple(_row(row, places, dropped, plan, evidence) for row in plan.rows)
    notes = [
        f"{leaf.path} is {leaf.info.dtype} as in the checkpoint; the target has {target[path].dtype}"
        for path, leaf in made.items()
        if leaf.info.dtype != target[path].dtype
    ]
    if len(notes) > 5:
        notes = [*notes[:5], f"and {len(notes) - 5} more of another dtype (--dtype casts)"]
    done = replace(plan, rows=rows, leaves=tuple(made.values()))
    return Fitted(done, moved, tuple(notes))


def _places(leaves: Iterable[PlannedLeaf]) -> dict[str, tuple[Target, ...]]:
    """Torch key → where its pieces are."""
    found: dict[str, list[Target]] = {}
    for leaf in leaves:
        for index, piece in enumerate(leaf.pieces):
            found.setdefault(piece.key, []).append(
                Target(leaf.path, piece.layout, piece.part, leaf.join, index)
            )
    return {key: tuple(its) for key, its in found.items()}


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
        owner = next(one.key for one in plan.mapped if one.targets == row.targets)
        if owner in places:
            return replace(row, targets=places[owner])
        return replace(row, outcome=Outcome.DROPPED, targets=(), note=f"tied to {owner}, dropped")
    return row
