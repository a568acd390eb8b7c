"""Report of a probe of the chips."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True)
class Chip:
    """A local device.

    Attributes:
        id: the runtime's number.
        kind: "TPU v5 lite", "cpu".
        where: coordinates in the slice and core on the chip, as far as the runtime tells.
        host: name of this machine.
    """

    id: int
    kind: str
    where: str
    host: str

    def __str__(self) -> str:
        at = f"{self.where}, " if self.where else ""
        return f"chip {self.id} ({at}{self.host})"


@dataclass(frozen=True)
class ChipFinding:
    """Something that is wrong.

    Attributes:
        kind: "differs", "flaky", "not finite", "no answer", "all-reduce", "all wrong", "disagree", "failed",
            "hung", "died".
        chips: ids of those that it is about; none: it cannot be told, or it is about all.
        text: what was seen.
        remedy: what to do.
    """

    kind: str
    chips: tuple[int, ...]
    text: str
    remedy: str


@dataclass(frozen=True)
class ChipProgram:
    """A program of the probe, over all chips and repeats.

    Attributes:
        name: "matmul float32".
        checksum: checksum of the result of most chips, in hexadecimal; "" if there is none.
        error: relative L2 of it against float64 on the host; None: no chip answered.
        limit: limit of the error.
        same: number of chips that gave it in every repeat.
    """

    name: str
    checksum: str
    error: float | None
    limit: float
    same: int


@dataclass(frozen=True)
class DevicesReport:
    """Report of the probe.

    Attributes:
        runtime: "jax 0.10.2", "torch_xla 2.9.0", "" if none started.
        chips: the local ones.
        programs: what was run.
        repeats: how often.
        size: side of the matrices.
        findings: what is wrong.
        notes: what was not looked at, and why.
        seconds: what it took.
    """

    runtime: str
    chips: tuple[Chip, ...]
    programs: tuple[ChipProgram, ...]
    repeats: int
    size: int
    findings: tuple[ChipFinding, ...]
    notes: tuple[str, ...]
    seconds: float

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def bad(self, chip: int) -> tuple[ChipFinding, ...]:
        """The findings that mark a chip as bad."""
        return tuple(finding for finding in self.findings if chip in finding.chips)

    def with_finding(self, finding: ChipFinding) -> DevicesReport:
        """Return the report with one more finding."""
        return dataclasses.replace(self, findings=(*self.findings, finding))
