"""The plan of a conversion: one row for every key, made before a single value is read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from converters.checkpoint.reader import TensorInfo
from converters.layers.join import ALONE
from converters.mapping.leaves import Piece, PlannedLeaf
from converters.mapping.module_tree import Outcome, Slot, Target


@dataclass(frozen=True)
class Row:
    """What becomes of one key.

    Attributes:
        key: the key in the torch checkpoint; of a refused row also a key that the checkpoint lacks.
        shape: its shape in the checkpoint; None if the checkpoint lacks it.
        dtype: its element type, which is kept ("float32", "bfloat16"); None if it is lacking.
        outcome: mapped, tied, dropped or refused.
        targets: where in the pytree it goes, in parts where several; none if dropped or refused. Of
            a tied row: where the shared tensor is.
        kind: the layer kind ("Linear", "Embedding"; "Parameter" or "buffer" for a tensor of a
            user's own module); "" if the model does not have the key.
        note: the reason if dropped or refused, the key tied to, or what to know; may be "".
        evidence: what says so: "module tree", or what an inference or a mapping file rests on.
    """

    key: str
    shape: tuple[int, ...] | None
    dtype: str | None
    outcome: Outcome
    targets: tuple[Target, ...] = ()
    kind: str = ""
    note: str = ""
    evidence: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """The `/`-joined paths in the pytree, collection first for linen."""
        return tuple(dict.fromkeys(target.path for target in self.targets))

    @property
    def path(self) -> str:
        """All of them in one text; "" without any."""
        return ", ".join(self.paths)

    @property
    def target_shape(self) -> tuple[int, ...] | None:
        """The shape of its one piece in the pytree; None without any, or with several."""
        if len(self.targets) != 1 or self.shape is None:
            return None
        (target,) = self.targets
        return Piece(self.key, target.layout, target.part).shape(self.shape)

    def refuse(self, reason: str) -> Row:
        """This row, refused."""
        return replace(self, outcome=Outcome.REFUSED, targets=(), note=reason)


@dataclass(frozen=True)
class Plan:
    """Every key of a checkpoint and what becomes of it.

    Attributes:
        checkpoint: the checkpoint as the user named it.
        rows: one for each of its keys, in its order, then the keys that it lacks (refused).
        leaves: the arrays of the pytree, each with the keys that it is made from.
    """

    checkpoint: str
    rows: tuple[Row, ...]
    leaves: tuple[PlannedLeaf, ...] = ()

    def of(self, outcome: Outcome) -> tuple[Row, ...]:
        """The rows with this outcome."""
        return tuple(row for row in self.rows if row.outcome is outcome)

    @property
    def mapped(self) -> tuple[Row, ...]:
        """The rows that become arrays of the pytree."""
        return self.of(Outcome.MAPPED)

    @property
    def refused(self) -> tuple[Row, ...]:
        """The rows that stand in the way of the conversion."""
        return self.of(Outcome.REFUSED)

    @property
    def counts(self) -> dict[str, int]:
        """Outcome → number of rows, every outcome named."""
        found = Counter(row.outcome for row in self.rows)
        return {outcome.value: found[outcome] for outcome in Outcome}


def make_plan(checkpoint: str, infos: Mapping[str, TensorInfo], slots: Mapping[str, Slot]) -> Plan:
    """Give every key of the checkpoint, and every tensor that the model needs, its outcome.

    Nothing is raised: what cannot be converted is a refused row, so that all of it is seen at once.
    """
    groups: dict[str, list[str]] = defaultdict(list)  # first key of a shared tensor → all its keys
    for key, slot in slots.items():
        groups[slot.tied or key].append(key)
    sources = {  # first key → the key that the checkpoint has it under
        first: next((key for key in keys if key in infos), None) for first, keys in groups.items()
    }
    rows = [_row(key, info, slots, sources) for key, info in infos.items()]
    for first, source in sources.items():
        slot = slots[first]
        if source is None and slot.outcome is not Outcome.DROPPED:
            reason = (
                slot.note
                if slot.outcome is Outcome.REFUSED
                else "the model needs it, the checkpoint lacks it"
            )
            rows.append(Row(first, None, None, Outcome.REFUSED, kind=slot.kind, note=reason))
    rows, leaves = _leaves(_without_collisions(rows))
    return Plan(checkpoint, tuple(rows), tuple(leaves))


def _row(
    key: str, info: TensorInfo, slots: Mapping[str, Slot], sources: Mapping[str, str | None]
) -> Row:
    row = Row(key, info.shape, info.dtype, Outcome.REFUSED)
    if key not in slots:
        return row.refuse("the model has no such tensor")
    slot = slots[slots[key].tied or key]  # a shared tensor lives where its first name says
    row = replace(row, kind=slot.kind)
    if slot.outcome is Outcome.DROPPED:
        return replace(row, outcome=Outcome.DROPPED, note=slot.note)
    if slot.outcome is Outcome.REFUSED:
        return row.refuse(slot.note)
    if info.shape != slot.shape:
        return row.refuse(f"shape {info.shape}, the model has {slot.shape}")
    source = sources[slot.key]
    assert source is not None, "the key itself is in the checkpoint"
    note = slot.note
    if source == key and key != slot.key:
        note = "; ".join(
            filter(None, (f"the same tensor as {slot.key}, which is not stored", note))
        )
    return replace(
        row,
        outcome=Outcome.MAPPED if source == key else Outcome.TIED,
        targets=slot.targets,
        note=note if source == key else f"tied to {source}",
        evidence=slot.evidence,
    )


def _without_collisions(rows: list[Row]) -> list[Row]:
    """Refuse rows that want a place that is another's, or one that leads through another's array."""
    owners: dict[str, list[tuple[str, Target]]] = defaultdict(list)
    for row in rows:
        if row.outcome is Outcome.MAPPED:
            for target in row.targets:
                owners[target.path].append((row.key, target))
    clashes: dict[str, str] = {}
    for path, claims in owners.items():
        folders = path.split("/")
        above = ["/".join(folders[:end]) for end in range(1, len(folders))]
        others = [key for parent in above for key, _ in owners.get(parent, ())]
        for key, target in claims:
            rivals = others + [
                rival for rival, its in claims if its is not target and _same_place(its, target)
            ]
            if rivals:
                clashes[key] = f"its path {path} collides with that of {', '.join(rivals)}"
    return [row.refuse(clashes[row.key]) if row.key in clashes else row for row in rows]


def _same_place(one: Target, other: Target) -> bool:
    """Whether two pieces of one path cannot both be in it."""
    return one.join == ALONE or other.join != one.join or other.index == one.index


def _leaves(rows: list[Row]) -> tuple[list[Row], list[PlannedLeaf]]:
    """The arrays of the mapped rows; a row whose pieces do not fit to the others' is refused."""
    made_of: dict[str, list[tuple[Row, Target]]] = defaultdict(list)
    for row in rows:
        if row.outcome is Outcome.MAPPED:
            for target in row.targets:
                made_of[target.path].append((row, target))
    leaves: list[PlannedLeaf] = []
    misfits: dict[str, str] = {}
    for path, claims in made_of.items():
        claims.sort(key=lambda claim: claim[1].index)
        try:
            leaves.append(_leaf(path, claims))
        except ValueError as error:
            misfits |= {row.key: f"{path}: {error}" for row, _ in claims}
    if misfits:
        kept = [row.refuse(misfits[row.key]) if row.key in misfits else row for row in rows]
        return _leaves(kept)
    return rows, leaves


def _leaf(path: str, claims: list[tuple[Row, Target]]) -> PlannedLeaf:
    dtypes = {row.dtype for row, _ in claims}
    if len(dtypes) > 1:
        raise ValueError(f"its pieces have several dtypes: {', '.join(map(str, dtypes))}")
    pieces = tuple(Piece(row.key, target.layout, target.part) for row, target in claims)
    join = claims[0][1].join
    positions = [target.index for _, target in claims]
    if positions != list(range(len(positions))):
        raise ValueError("a piece of it is lacking")
    shapes = [piece.shape(row.shape or ()) for piece, (row, _) in zip(pieces, claims, strict=True)]
    return PlannedLeaf(path, TensorInfo(join.shape(shapes), dtypes.pop() or ""), pieces, join)
