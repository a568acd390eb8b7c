"""The runs of one side against the truth, some inputs at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from migrate.parity.align.align import align
from migrate.parity.align.weight_map import WeightMap
from migrate.parity.dump.dump import DUMP_FILE, Dump
from migrate.parity.dump.joined import joined
from migrate.parity.dump.reference import Forced
from migrate.parity.ground.alignment import LayerAlignment
from migrate.parity.ground.outputs import OutputRules
from migrate.parity.ground.settings import SideSettings
from migrate.parity.inputs.set import InputSet, attended
from migrate.parity.judge.measured import measure_dump
from migrate.parity.sides import protocol
from migrate.parity.sides.side import Side

# Of the truth's tensors, which are on disk while its sides are fed with them: pages that are written again
# and again cost a tenth of those that a machine has to find.
_BYTES = 256 << 20
FIRST = "first"


@dataclass(frozen=True)
class Captured:
    """What one of the four computed: A, B, the truth or the emulation.

    Attributes:
        settings: with which.
        dump: as it runs.
        alignment: with the truth.
        local: with each layer fed with the truth's inputs; None: layers are not compared.
        measured: whether tensors of layers were measured and are not in the dumps (`judge.measured`).
    """

    settings: SideSettings
    dump: Dump
    alignment: LayerAlignment
    local: Dump | None = None
    measured: bool = False


@dataclass
class Run:
    """One side.

    Attributes:
        name: of its folders.
        side, settings: what runs, and how.
        weights: the names of its weights in the truth's.
        explicit: layers of the side → of the truth, as the user says.
        rules: what is said of the outputs; None: its model is the truth's.
        inputs: all of them.
        work: the folder of its folders.
        layers: whether layers are compared.
        measured: as of `Captured`.
        seconds: of its plain passes.
    """

    name: str
    side: Side
    settings: SideSettings
    weights: WeightMap
    explicit: Mapping[str, str] | None
    rules: OutputRules | None
    inputs: InputSet
    work: Path
    layers: bool
    measured: bool
    seconds: float = 0.0
    _alignment: LayerAlignment | None = None
    _plain: list[Dump] = field(default_factory=list)
    _local: list[Dump] = field(default_factory=list)

    def take(self, truth: Dump, numbers: Sequence[int]) -> None:
        """Run the inputs of these numbers, which the truth's dump holds.

        The first time its layers are aligned with the truth's.
        """
        part = part_of(numbers, self.inputs.count)
        self._plain.append(self._as_it_runs(truth, numbers, self.work / self.name / part))
        if self.layers:
            reference = self._reference(truth)
            folder = self.work / f"{self.name}-local" / part
            self._capture(folder, numbers, reference=reference, forced=True, measured=self.measured)
            self._local.append(Dump(folder))

    def _as_it_runs(self, truth: Dump, numbers: Sequence[int], folder: Path) -> Dump:
        if not self.measured:
            self._capture(folder, numbers, layers=self.layers)
            self._alignment = self._alignment or self._aligned(truth, folder)
        elif self._alignment is not None:
            self._capture(folder, numbers, reference=self._reference(truth), measured=True)
        else:
            self._first(truth, folder, numbers)
        return Dump(folder)

    def _first(self, truth: Dump, folder: Path, numbers: Sequence[int]) -> None:
        """The first input's tensors are written: by them layers are aligned; then they are measured."""
        # All sides in the same files, one after the other: see `Dump.forget_layers`.
        written = self.work / FIRST
        self._capture(written, numbers[:1])
        self._alignment = self._aligned(truth, written)
        if len(numbers) == 1:
            padding = attended(self.inputs)
            measure_dump(Dump(written), folder, self._reference(truth), padding)
        (written / DUMP_FILE).unlink()
        if len(numbers) > 1:  # they are one dump, and run as one
            self.seconds = 0.0
            self._capture(folder, numbers, reference=self._reference(truth), measured=True)

    def _capture(self, folder: Path, numbers: Sequence[int], **how: Any) -> None:
        self.seconds += self.side.ask(
            protocol.Capture(self.settings, self.inputs, folder, numbers=numbers, **how)
        )

    def _reference(self, truth: Dump) -> Forced:
        assert self._alignment is not None
        return Forced(truth.folder, self._alignment)

    def captured(self) -> Captured:
        """All that was taken."""
        assert self._alignment is not None
        local = joined(self._local) if self._local else None
        return Captured(self.settings, joined(self._plain), self._alignment, local, self.measured)

    def _aligned(self, truth: Dump, folder: Path) -> LayerAlignment:
        return align(truth, Dump(folder), self.weights.names, self.explicit, self.rules)


def part_of(numbers: Sequence[int], count: int) -> str:
    """The folder of a dump of some inputs, in that of its side; one of all is that itself."""
    return "" if len(numbers) == count else f"{numbers[0]:03d}"


class Groups:
    """The first input, then as many at a time as the truth's tensors of one leave room for.

    Args:
        count: of inputs.
        together: whether all go at once.
    """

    def __init__(self, count: int, *, together: bool) -> None:
        self._count, self._size = count, count if together else 1

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        start = 0
        while start < self._count:
            numbers = tuple(range(start, min(start + self._size, self._count)))
            yield numbers
            start += len(numbers)

    def fit(self, tensors: Path) -> None:
        """Say where the truth's tensors of the first input are; those of a later group are not asked for."""
        if self._size == 1:
            size = sum(file.stat().st_size for file in tensors.iterdir())
            self._size = max(1, _BYTES // max(size, 1))
