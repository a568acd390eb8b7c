"""The plan of a conversion: one row for every key, made before a single value is read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from converters.checkpoint.reader import TensorInfo
from converters.layers import UNCHANGED, Layout
from converters.mapping.module_tree import Outcome, Slot


@dataclass(frozen=True)
class Row:
    """What becomes of one key.

    Attributes:
        key: the key in the torch checkpoint; of a refused row also a key that the checkpoint lacks.
        shape: its shape in the checkpoint; None if the checkpoint lacks it.
        dtype: its element type, which is kept ("float32", "bfloat16"); None if it is lacking.
        outcome: mapped, tied, dropped or refused.
        path: `/`-joined path in the pytree, collection first; "" if dropped or refused. Of a tied
            row: the path under which the shared tensor is.
        target_shape: its shape in the pytree; None if dropped or refused.
        kind: the layer kind ("Linear", "Embedding"; "Parameter" or "buffer" for a tensor of a
            user's own module); "" if the model does not have the key.
        note: the reason if dropped or refused, the key tied to, or what to know; may be "".
        layout: from torch's arrangement to Flax's.
    """

    key: str
    shape: tuple[int, ...] | None
    dtype: str | None
    outcome: Outcome
    path: str = ""
    target_shape: tuple[int, ...] | None = None
    kind: str = ""
    note: str = ""
    layout: Layout = UNCHANGED

    @property
    def info(self) -> TensorInfo:
        """Shape and dtype of a mapped row's array in the pytree."""
        assert self.target_shape is not None
        assert self.dtype is not None
        return TensorInfo(self.target_shape, self.dtype)

    def refuse(self, reason: str) -> Row:
        """This row, refused."""
        return replace(self, outcome=Outcome.REFUSED, path="", target_shape=None, note=reason)


@dataclass(frozen=True)
class Plan:
    """Every key of a checkpoint and what becomes of it.

    Attributes:
        checkpoint: the checkpoint as the user named it.
        rows: one for each of its keys, in its order, then the keys that it lacks (refused).
    """

    checkpoint: str
    rows: tuple[Row, ...]

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
    return Plan(checkpoint, tuple(_without_collisions(rows)))


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
        path=slot.path,
        target_shape=slot.layout.shape(slot.shape),
        note=note if source == key else f"tied to {source}",
        layout=slot.layout,
    )


def _without_collisions(rows: list[Row]) -> list[Row]:
    """Refuse rows whose path is another's, or leads through another's array."""
    owners: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row.outcome is Outcome.MAPPED:
            owners[row.path].append(row.key)
    clashes: dict[str, str] = {}
    for path, keys in owners.items():
        folders = path.split("/")
        above = ["/".join(folders[:end]) for end in range(1, len(folders))]
        others = [key for parent in above for key in owners.get(parent, ())]
        for key in keys:
            rivals = others + [other for other in keys if other != key]
            if rivals:
                clashes[key] = f"its path {path} collides with that of {', '.join(rivals)}"
    return [row.refuse(clashes[row.key]) if row.key in clashes else row for row in rows]
