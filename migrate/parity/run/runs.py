"""Runs of one side against the truth, some inputs at a time."""

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
from migrate.parity.sides.side import ComparedSide

# Bytes of the truth's tensors on disk while its sides are fed with them. Writing the same pages again costs
# a tenth of what new pages cost.
_BYTES = 256 << 20
FIRST = "first"


@dataclass(frozen=True)
class Captured:
    """Captured results of A, B, the truth or the emulation.

    Attributes:
        settings: settings of the run.
        dump: dump of an ordinary run.
        alignment: alignment with the truth.
        local: dump with each layer fed with the truth's inputs; None: layers are not compared.
        measured: whether tensors of layers were measured and are not in the dumps (`judge.measured`).
    """

    settings: SideSettings
    dump: Dump
    alignment: LayerAlignment
    local: Dump | None = None
    measured: bool = False


@dataclass
class SideRun:
    """Runs of one side.

    Attributes:
        name: name of its folders.
        side, settings: the side, and the settings of its runs.
        weights: names of its weights in the truth.
        explicit: layers of the side → of the truth, from the user's file.
        rules: rules for the outputs; None: its model is the truth's.
        inputs: all inputs.
        work: parent of its folders.
        layers: whether layers are compared.
        measured: as in `Captured`.
        seconds: seconds of its ordinary passes.
    """

    name: str
    side: ComparedSide
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
        """Run the inputs with these numbers, which the truth's dump holds.

        The first run aligns its layers with the truth's.
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
        """Write the tensors of the first input, which align the layers; then measure them."""
        # All sides use the same files, one after the other: see `Dump.forget_layers`.
        written = self.work / FIRST
        self._capture(written, numbers[:1])
        self._alignment = self._aligned(truth, written)
        if len(numbers) == 1:
            padding = attended(self.inputs)
            measure_dump(Dump(written), folder, self._reference(truth), padding)
        (written / DUMP_FILE).unlink()
        if len(numbers) > 1:  # they are one dump, and run together
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
        """Everything that was captured."""
        assert self._alignment is not None
        local = joined(self._local) if self._local else None
        return Captured(self.settings, joined(self._plain), self._alignment, local, self.measured)

    def _aligned(self, truth: Dump, folder: Path) -> LayerAlignment:
        return align(
            truth,
            Dump(folder),
            self.weights.names,
            self.explicit,
            self.rules,
            tied=self.weights.tied,
        )


def part_of(numbers: Sequence[int], count: int) -> str:
    """Folder of a dump of some inputs, in the folder of its side; for all inputs, that folder itself."""
    return "" if len(numbers) == count else f"{numbers[0]:03d}"


class Groups:
    """Groups of inputs: the first input, then as many at a time as fit by the size of the truth's tensors.

    Args:
        count: number of inputs.
        together: whether all run at once.
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
        """Set the folder of the truth's tensors of the first input; later groups do not change the size."""
        if self._size == 1:
            size = sum(file.stat().st_size for file in tensors.iterdir())
            self._size = max(1, _BYTES // max(size, 1))
