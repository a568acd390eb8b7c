"""Find avoidable work of a compiled program: idle matrix units, padding, copies, exact products."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from migrate.counts import binary_size
from migrate.fit.lines import least_seconds
from migrate.fit.memory import Memory
from migrate.fit.products import Generation
from migrate.fit.work import InstructionWork

# Below these shares nobody would change a line for it.
OF_THE_STEP = 0.02
_OF_THE_UNIT = 0.25
_OF_THE_MEMORY = 0.02
_OF_THE_CHIP = 0.001
_COPIES = 0.05
_COPIED = 1e6  # bytes


@dataclass(frozen=True)
class Waste:
    """Something that could be cheaper.

    Attributes:
        kind: "idle matrix unit", "padding", "copies", "exact products"; those of `as_written` beside.
        source: `file.py:line`.
        what: description of the waste, with figures.
        remedy: the change that mends it.
        share: share of the step's least time or of its products; for memory, share of the peak.
    """

    kind: str
    source: str
    what: str
    remedy: str
    share: float


def found_once(waste: Iterable[Waste]) -> Iterator[Waste]:
    """Yield equal findings of several programs of a step once, with their shares together."""
    shares: dict[Waste, float] = defaultdict(float)
    for entry in waste:
        shares[replace(entry, share=0.0)] += entry.share
    yield from (replace(entry, share=share) for entry, share in shares.items())


def waste_of(work: Sequence[InstructionWork], memory: Memory, chip: Generation) -> Iterator[Waste]:
    """All of it, in no order."""
    yield from _idle(work, chip)
    yield from _exact(work, chip)
    yield from _copies(work, chip)
    yield from _padding(memory, chip)


def worth_its_memory(size: float, memory: Memory, chip: Generation) -> bool:
    """Whether so many bytes are worth reporting."""
    return size >= max(_OF_THE_MEMORY * memory.peak, _OF_THE_CHIP * chip.hbm)


def _total(work: Iterable[InstructionWork], chip: Generation) -> float:
    return sum(least_seconds(instruction, chip) for instruction in work) or 1.0


def _idle(work: Sequence[InstructionWork], chip: Generation) -> Iterator[Waste]:
    """Products whose sides do not fill the matrix units."""
    total, seen = _total(work, chip), set()
    for instruction in work:
        for product in instruction.products:
            sides = (product.columns, product.depth)
            other = (product.rows, product.depth)  # either operand may stay in the unit
            used = max(_used(sides, chip.mxu), _used(other, chip.mxu))
            seconds = instruction.times * product.flops * product.passes / chip.flops
            share = seconds * (1 / used - 1) / total if used else 0.0
            key = (instruction.source, product.rows, product.columns, product.depth)
            if used <= 1 - _OF_THE_UNIT and share >= OF_THE_STEP and key not in seen:
                seen.add(key)
                yield Waste(
                    "idle matrix unit",
                    instruction.source,
                    f"a product [{product.rows}×{product.depth}]·[{product.depth}×{product.columns}] uses "
                    f"{used:.0%} of a {chip.mxu}-wide matrix unit",
                    f"make its sides multiples of {chip.mxu} (heads of {chip.mxu} instead of 64 or 48, a "
                    "vocabulary and widths rounded up)",
                    share,
                )


def _used(sides: tuple[int, int], unit: int) -> float:
    return math.prod(side / (math.ceil(side / unit) * unit) for side in sides)


def _exact(work: Sequence[InstructionWork], chip: Generation) -> Iterator[Waste]:
    """Products of float32 that are asked for with more than one pass."""
    total = _total(work, chip)
    extra: dict[tuple[str, str], float] = defaultdict(float)
    for instruction in work:
        for product in instruction.products:
            if product.passes > 1:
                seconds = instruction.times * product.flops * (product.passes - 1) / chip.flops
                extra[instruction.source, product.precision] += seconds
    for (source, precision), seconds in extra.items():
        if seconds / total >= OF_THE_STEP:
            yield Waste(
                "exact products",
                source,
                f"float32 products with precision {precision}: several passes of the matrix unit for each",
                "leave the precision at its default, or compute in bfloat16, where that is exact enough",
                seconds / total,
            )


def _copies(work: Sequence[InstructionWork], chip: Generation) -> Iterator[Waste]:
    """Bytes that only change their layout."""
    total = _total(work, chip)
    moved: dict[str, int] = defaultdict(int)
    for instruction in work:
        if instruction.instruction.opcode in ("copy", "transpose"):
            moved[instruction.source] += instruction.moved
    for source, count in moved.items():
        share = count / chip.bandwidth / total
        if share >= _COPIES and count >= _COPIED:
            yield Waste(
                "copies",
                source,
                f"{binary_size(count)} are moved only to lie otherwise",
                "avoid the transpose, or keep the array in the order in which it is used",
                share,
            )


def _padding(memory: Memory, chip: Generation) -> Iterator[Waste]:
    """Yield the arrays that consist largely of padding."""
    for held in memory.at_peak:
        lost = held.bytes - held.array.size
        if lost > _OF_THE_UNIT * held.array.size and worth_its_memory(lost, memory, chip):
            yield Waste(
                "padding",
                held.source,
                f"{held.array} ({held.name or held.kind}) takes "
                f"{held.bytes / held.array.size:.1f} times its size",
                "let its last two sides be multiples of 8 and 128, or merge small ones",
                lost / memory.peak,
            )
