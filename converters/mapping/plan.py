"""Plan of a conversion: one row per key, made before any value is read."""

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
    """Outcome of one key, with its details.

    Attributes:
        key: the key in the torch checkpoint; a refused row may have a key that is missing there.
        shape: its shape in the checkpoint; None if missing.
        dtype: its element type, which is kept ("float32", "bfloat16"); None if missing.
        outcome: mapped, tied, dropped or refused.
        targets: its targets in the pytree, one per part; empty if dropped or refused. For a tied
            row, the targets of the shared tensor.
        kind: the layer kind ("Linear", "Embedding"; "Parameter" or "buffer" for a tensor of a
            user's own module); "" if the model does not have the key.
        note: the reason if dropped or refused, the key tied to, or another note; may be "".
        evidence: the basis: "module tree", or that of an inference or a mapping file.
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
        """All paths in one text, or ""."""
        return ", ".join(self.paths)

    @property
    def target_shape(self) -> tuple[int, ...] | None:
        """Shape of its piece in the pytree; None without a piece, or with several."""
        if len(self.targets) != 1 or self.shape is None:
            return None
        (target,) = self.targets
        return Piece(self.key, target.layout, target.part).shape(self.shape)

    def refuse(self, reason: str) -> Row:
        """Return this row as refused."""
        return replace(self, outcome=Outcome.REFUSED, targets=(), note=reason)


@dataclass(frozen=True)
class Plan:
    """Outcome of every key of a checkpoint.

    Attributes:
        checkpoint: the checkpoint as the user named it.
        rows: one row per key, in the checkpoint's order, then the missing keys (refused).
        leaves: the arrays of the pytree, each with the keys of its pieces.
    """

    checkpoint: str
    rows: tuple[Row, ...]
    leaves: tuple[PlannedLeaf, ...] = ()

    def of(self, outcome: Outcome) -> tuple[Row, ...]:
        """Return the rows with this outcome."""
        return tuple(row for row in self.rows if row.outcome is outcome)

    @property
    def mapped(self) -> tuple[Row, ...]:
        """Rows that become arrays of the pytree."""
        return self.of(Outcome.MAPPED)

    @property
    def refused(self) -> tuple[Row, ...]:
        """Rows that prevent the conversion."""
        return self.of(Outcome.REFUSED)

    @property
    def counts(self) -> dict[str, int]:
        """Outcome → number of rows, for every outcome."""
        counts = Counter(row.outcome for row in self.rows)
        return {outcome.value: counts[outcome] for outcome in Outcome}


def make_plan(checkpoint: str, infos: Mapping[str, TensorInfo], slots: Mapping[str, Slot]) -> Plan:
    """Give every key of the checkpoint, and every tensor that the model needs, its outcome.

    Nothing is raised: a tensor that cannot be converted is a refused row, so that all of them are
    reported at once.
    """
    groups: dict[str, list[str]] = defaultdict(list)  # first key of a shared tensor → all its keys
    for key, slot in slots.items():
        groups[slot.tied or key].append(key)
    sources = {  # first key → the key under which the checkpoint has it
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
    slot = slots[slots[key].tied or key]  # the path of a shared tensor follows from its first name
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
    """Refuse rows whose path is already used, or leads through another array."""
    owners: dict[str, list[tuple[str, Target]]] = defaultdict(list)
    for row in rows:
        if row.outcome is Outcome.MAPPED:
            for target in row.targets:
                owners[target.path].append((row.key, target))
    clashes: dict[str, str] = {}
    for path, claims in owners.items():
        folders = path.split("/")
        parents = ["/".join(folders[:end]) for end in range(1, len(folders))]
        others = [key for parent in parents for key, _ in owners.get(parent, ())]
        for key, target in claims:
            rivals = others + [
                rival
                for rival, claimed in claims
                if claimed is not target and _overlaps(claimed, target)
            ]
            if rivals:
                clashes[key] = f"its path {path} collides with that of {', '.join(rivals)}"
    return [row.refuse(clashes[row.key]) if row.key in clashes else row for row in rows]


def _overlaps(target: Target, other: Target) -> bool:
    """Whether two pieces with one path exclude each other."""
    return target.join == ALONE or other.join != target.join or other.index == target.index


def _leaves(rows: list[Row]) -> tuple[list[Row], list[PlannedLeaf]]:
    """Return the arrays of the mapped rows. A row whose pieces do not fit the others' is refused."""
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
