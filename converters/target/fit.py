"""A plan fitted to a Flax model that exists: every array at its path, or the list of what does not fit."""

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
from converters.target.fused import like_target
from converters.target.layouts import permitted
from converters.target.match import match, match_whole
from converters.target.modules import Family, families

_OWNER = re.compile(r"a parameter of (\w+) itself")
EVIDENCE = "fitted to the target by name and shape"
Numbers = tuple[int, ...]
_TIED = "params/tied:/"  # no path of a module has a colon
_TIED_KIND = {"embedding": "Embedding", "kernel": "Linear"}


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
class _Way:
    """One way to make an array of the target: a layout, and the axis of the stack if it is one."""

    layout: Layout
    axis: int | None = None


def fit_plan(
    plan: Plan,
    target: Mapping[str, TensorInfo],
    *,
    scan_axis: int | None = None,
    drop: Sequence[str] = (),
) -> Fitted:
    """Give every array of a plan its place in a Flax model.

    Names are compared word by word (q_proj and query are one), numbers by their order; a layout is
    tried only where the layer kind permits it (a Linear's rows as heads; stacked layers). What two
    arrays fit equally well, or what no name speaks for, is refused.

    Args:
        plan: nothing in it refused.
        target: path → shape and dtype of the model's arrays (`target_shapes`).
        scan_axis: of stacked layers, where the shapes leave it open.
        drop: regular expressions of torch keys that the target has no use for.

    Raises:
        MisfitError: what is missing, extra, of a wrong shape or ambiguous; all of it is named.
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
    kinds = _kinds(plan)
    leaves, origins = like_target(leaves, target)
    kinds |= {path: kinds[origin] for path, origin in origins.items()}
    infos = {path: leaf.info for path, leaf in leaves.items()}
    sources, targets = families(infos), families(target)

    def fits(source: Family, other: Family) -> bool:
        return _ways(source, other, infos, target, kinds) is not None

    matched = match(sources, targets, fits)
    for leaf, kind in _tied(plan, dropped):  # a target may keep apart what torch shares
        leaves[leaf.path], kinds[leaf.path], infos[leaf.path] = leaf, kind, leaf.info
    for name in _TIED_KIND:
        shared = {
            path: info
            for path, info in infos.items()
            if path.startswith(_TIED) and path.endswith(f"/{name}")
        }
        also = match_whole(families(shared), matched.missing, fits)
        matched = replace(matched, pairs=matched.pairs + also.pairs, missing=also.missing)
    problems = list(matched.problems)
    ways: dict[str, tuple[list[str], list[_Way]]] = {}
    for one, other in matched.pairs:
        ways |= _ways(one, other, infos, target, kinds) or {}
    problems += _left(matched.extra, matched.missing, infos, target)
    chosen, undecided = _chosen(ways, leaves, kinds, scan_axis)
    problems += undecided
    if problems:
        raise MisfitError(
            f"{plan.checkpoint} does not fit the target",
            problems,
            "make the models alike, drop keys that the target has no use for, or edit the mapping",
        )
    made = {path: _leaf(path, ways[path][0], chosen[path], leaves) for path in target}
    done = _fitted(plan, made, {path: ways[path][0] for path in target}, dropped, target)
    left = tuple(
        f"{other} is {one}: called otherwise, and all else has its place"
        for one, other in matched.by_elimination
    )
    return replace(done, notes=done.notes + left)


def _tied(plan: Plan, dropped: Mapping[str, str]) -> Iterator[tuple[PlannedLeaf, str]]:
    """Keys that share the tensor of an embedding, as arrays of their own: a table, or a Linear's kernel."""
    owners = {row.targets: row for row in plan.mapped}
    for row in plan.of(Outcome.TIED):
        kind, shape = owners[row.targets].kind, row.shape or ()
        if row.key in dropped or len(shape) != 2 or kind not in ("Embedding", "Linear"):
            continue
        module = row.key.rpartition(".")[0].replace(".", "/")
        for name, layout in (("embedding", UNCHANGED), ("kernel", Permute((1, 0)))):
            info = TensorInfo(layout.shape(shape), row.dtype or "")
            piece = Piece(row.key, layout)
            yield PlannedLeaf(f"{_TIED}{module}/{name}", info, (piece,)), _TIED_KIND[name]


def _ways(
    source: Family,
    target: Family,
    infos: Mapping[str, TensorInfo],
    wanted: Mapping[str, TensorInfo],
    kinds: Mapping[str, str],
) -> dict[str, tuple[list[str], list[_Way]]] | None:
    """Path in the target → paths in the plan and ways to make it of them; None if they do not fit."""
    if source.roles != target.roles:
        return None
    found: dict[str, tuple[list[str], list[_Way]]] = {}
    for numbers, members in _aligned(source, target) or ():
        for role, path in target.members[numbers].items():
            its = [source.members[member][role] for member in members]
            kind = kinds[its[0]].partition(" ")[0]
            shapes = {infos[one].shape for one in its}
            if len(shapes) > 1:
                return None
            made = list(_made(kind, role, shapes.pop(), wanted[path].shape, len(its)))
            if not made:
                return None
            found[path] = (its, made)
    return found or None


def _aligned(source: Family, target: Family) -> list[tuple[Numbers, list[Numbers]]] | None:
    """Numbers in the target → those in the plan, by their order; several where layers are stacked."""
    mine, theirs = sorted(source.members), sorted(target.members)
    if len(mine) == len(theirs):
        if len(mine) == 1:
            return [(theirs[0], mine)]
        ranks, others = _ranked(mine), _ranked(theirs)
        if ranks == others:
            return [(other, [one]) for one, other in zip(mine, theirs, strict=True)]
        return None
    depth = len(mine[0])
    for level in range(depth):  # the level that is stacked
        stacked: dict[Numbers, list[Numbers]] = {}
        for numbers in mine:
            rest = (*numbers[:level], *numbers[level + 1 :])
            stacked.setdefault(rest, []).append(numbers)
        lengths = {len(its) for its in stacked.values()}
        rest_ranks, others = _ranked(sorted(stacked)), _ranked(theirs)
        if len(lengths) == 1 and (rest_ranks == others or len(stacked) == len(theirs) == 1):
            return [
                (other, stacked[rest]) for rest, other in zip(sorted(stacked), theirs, strict=True)
            ]
    return None


def _ranked(numbers: Sequence[Numbers]) -> list[Numbers]:
    """Each number as its place among those at its level: 1, 2 and 0, 1 are alike."""
    orders = [
        {value: rank for rank, value in enumerate(sorted(set(column)))}
        for column in zip(*numbers, strict=True)
    ]
    return [
        tuple(order[value] for order, value in zip(orders, its, strict=True)) for its in numbers
    ]


def _made(
    kind: str, role: str, shape: tuple[int, ...], wanted: tuple[int, ...], count: int
) -> Iterator[_Way]:
    if count == 1:
        for layout in permitted(kind, role, shape, wanted):
            yield _Way(layout)
        return
    for axis, side in enumerate(wanted):
        if side == count:
            rest = (*wanted[:axis], *wanted[axis + 1 :])
            for layout in permitted(kind, role, shape, rest):
                yield _Way(layout, axis)


def _chosen(
    ways: Mapping[str, tuple[list[str], list[_Way]]],
    leaves: Mapping[str, PlannedLeaf],
    kinds: Mapping[str, str],
    scan_axis: int | None,
) -> tuple[dict[str, _Way], list[str]]:
    """One way for each array: where shapes allow several, what the unambiguous ones of its kind have."""
    axes = {
        frozenset(way.axis for way in its if way.axis is not None)
        for _, its in ways.values()
        if its[0].axis is not None
    }
    common = frozenset.intersection(*axes) if axes else frozenset()
    axis = scan_axis if scan_axis is not None else (min(common) if len(common) == 1 else None)
    turned: dict[str, set[bool]] = {}
    for its, possible in ways.values():
        if len(leaves[its[0]].info.shape) > 1 and len({_turned(way) for way in possible}) == 1:
            turned.setdefault(kinds[its[0]], set()).add(_turned(possible[0]))
    chosen: dict[str, _Way] = {}
    problems: list[str] = []
    for path, (its, possible) in ways.items():
        left = possible
        if len({way.axis for way in left}) > 1:
            left = [way for way in left if way.axis == axis]
        known = turned.get(kinds[its[0]], set())
        if len(left) > 1 and len(known) == 1:
            left = [way for way in left if _turned(way) in known]
        if len(left) == 1:
            chosen[path] = left[0]
        elif len({way.axis for way in possible}) > 1:
            problems.append(f"{path}: its shape does not say along which axis layers are stacked")
        else:
            problems.append(f"{path}: square, and nothing says whether it is {its[0]} turned")
    return chosen, problems


def _turned(way: _Way) -> bool:
    return "transpose" in str(way.layout)


def _leaf(
    path: str, its: Sequence[str], way: _Way, leaves: Mapping[str, PlannedLeaf]
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


def _left(
    extra: Sequence[Family],
    missing: Sequence[Family],
    infos: Mapping[str, TensorInfo],
    wanted: Mapping[str, TensorInfo],
) -> list[str]:
    """Missing, extra and of a wrong shape, one line for each array."""
    by_words = {(source.words, source.roles): source for source in extra}
    lines: list[str] = []
    for target in missing:
        namesake = by_words.get((target.words, target.roles))
        for numbers, roles in target.members.items():
            for role, path in roles.items():
                mine = namesake.members.get(numbers, {}).get(role) if namesake else None
                if mine is not None and infos[mine].shape != wanted[path].shape:
                    lines.append(
                        f"wrong shape: {path} is {wanted[path].shape}, {mine} {infos[mine].shape}"
                    )
                elif mine is None:
                    lines.append(f"missing: nothing for {path} {wanted[path].shape}")
    for source in extra:
        for roles in source.members.values():
            lines += [f"extra: no place for {path} {infos[path].shape}" for path in roles.values()]
    return lines


def _fitted(
    plan: Plan,
    made: Mapping[str, PlannedLeaf],
    origins: Mapping[str, Sequence[str]],
    dropped: Mapping[str, str],
    target: Mapping[str, TensorInfo],
) -> Fitted:
    moved = {old: path for path, its in origins.items() for old in its}
    places = _places(made.values())
    rows = tuple(_row(row, places, dropped, plan) for row in plan.rows)
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
) -> Row:
    if row.key in dropped:
        reason = f"dropped by the user ({dropped[row.key]})"
        return replace(row, outcome=Outcome.DROPPED, targets=(), note=reason)
    if row.outcome is Outcome.MAPPED:
        return replace(row, targets=places[row.key], evidence=EVIDENCE)
    if row.outcome is Outcome.TIED and row.key in places:
        note = f"{row.note} in torch, an array of its own in the target"
        return replace(row, outcome=Outcome.MAPPED, targets=places[row.key], note=note)
    if row.outcome is Outcome.TIED:
        owner = next(one.key for one in plan.mapped if one.targets == row.targets)
        if owner in places:
            return replace(row, targets=places[owner])
        return replace(row, outcome=Outcome.DROPPED, targets=(), note=f"tied to {owner}, dropped")
    return row


def _kinds(plan: Plan) -> dict[str, str]:
    """Path in the plan → kind of the layer, for a user's own parameters with the class they belong to."""
    kinds: dict[str, str] = {}
    for row in plan.mapped:
        owner = _OWNER.search(row.note)
        for path in row.paths:
            kinds[path] = f"{row.kind} {owner[1]}" if owner else row.kind
    return kinds


def _matching(key: str, patterns: Sequence[str]) -> str:
    return next((pattern for pattern in patterns if re.search(pattern, key)), "")
