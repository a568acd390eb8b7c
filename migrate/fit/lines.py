"""Roofline of a compiled program: the least time of a step, and the share of each line of the user's code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from migrate.fit.products import Generation
from migrate.fit.work import Collective, InstructionWork


@dataclass(frozen=True)
class StepBound:
    """Lower bound of the time of a step, from its work.

    It is a bound: no program runs faster, real ones are slower. Multiplications at the chip's bfloat16 peak,
    bytes at its full bandwidth, exchanges at that of all links, each of the three as if it were alone.

    Attributes:
        compute, memory, links: seconds.
    """

    compute: float
    memory: float
    links: float

    @property
    def seconds(self) -> float:
        """The longest of the three."""
        return max(self.compute, self.memory, self.links)

    @property
    def by(self) -> str:
        """Name of the largest of the three bounds."""
        names = {"MXU": self.compute, "HBM": self.memory, "ICI": self.links}
        return max(names, key=names.__getitem__)


@dataclass(frozen=True)
class LineCost:
    """Cost of one line of the user's code in a step.

    Attributes:
        source: `file.py:line`, or "" for what the program does not tell.
        share: share of the sum of the least times of all instructions.
        flops: operations of the matrix units.
        bytes: bytes to and from HBM.
    """

    source: str
    share: float
    flops: float
    bytes: int


def bound_of(
    work: Iterable[InstructionWork], collectives: Iterable[Collective], chip: Generation
) -> StepBound:
    """Return the lower bound of a step on one device."""
    done = list(work)
    return StepBound(
        sum(instruction.flops for instruction in done) / chip.flops,
        sum(instruction.moved for instruction in done) / chip.bandwidth,
        links_seconds(collectives, chip),
    )


def links_seconds(collectives: Iterable[Collective], chip: Generation) -> float:
    """Return the least time of exchanges: a chip sends over all of its links at once."""
    return sum(collective.sent for collective in collectives) * chip.devices / chip.link


def least_seconds(instruction: InstructionWork, chip: Generation) -> float:
    """Return the least time of one instruction, all its runs together."""
    return max(instruction.flops / chip.flops, instruction.moved / chip.bandwidth)


def lines_of(work: Sequence[InstructionWork], chip: Generation) -> tuple[LineCost, ...]:
    """Return the lines of a program, the most expensive first."""
    seconds: dict[str, float] = defaultdict(float)
    flops: dict[str, float] = defaultdict(float)
    moved: dict[str, int] = defaultdict(int)
    for instruction in work:
        seconds[instruction.source] += least_seconds(instruction, chip)
        flops[instruction.source] += instruction.flops
        moved[instruction.source] += instruction.moved
    total = sum(seconds.values()) or 1.0
    lines = [LineCost(at, seconds[at] / total, flops[at], moved[at]) for at in seconds]
    return tuple(sorted(lines, key=lambda line: -line.share))
