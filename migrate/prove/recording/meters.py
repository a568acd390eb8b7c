"""Compare the printed lines of the two sides: meters of losses and accuracies, which no other record has.

Lines are aligned by their text. Integers stay in it, so that "epoch 3: loss 0.12" meets the line of epoch 3
whenever it is printed, and numbers with a point are compared. Left out are times, rates, memory, learning
rates, lines of one side only, and lines that two runs of the original print differently.
"""

from __future__ import annotations

import io
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

# Relative to the value: a meter sums values within the gates of losses, over other batches and in another
# order.
PRINTED_GATE = 1e-3
# An accuracy counts examples, and an example whose two best classes are a rounding apart may change sides.
COUNTED_GATE = 1e-2

_NUMBER = re.compile(
    r"(?<![\w.:])[-+]?(?:\d+\.\d*(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+|nan|inf)(?![\w.:]*\w)"
)
_DECIMALS = re.compile(r"\.(\d*)(?:[eE]([-+]?\d+))?")
_VALUE = r"[-+]?\d[\d.,]*(?:[eE][-+]?\d+)?"
# Numbers that differ between any two runs; a dot in their place keeps the rest of the line aligned.
_LEFT_OUT = (
    re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?"),
    re.compile(r"\d+(?::\d\d)+(?:[.,]\d+)?"),
    # A number with a unit of time, rate or size.
    re.compile(
        rf"{_VALUE}\s*(?:[a-z]*/(?:s|sec|second|ms|min|h|day|it|iter|step|batch|epoch)\b"
        r"|[mnuµ]?s\b|sec(?:ond)?s?\b|min(?:ute)?s?\b|h(?:ours?)?\b|[kmgt]i?b\b|[kmgt]?flops?\b)",
        re.I,
    ),
    # A label of such a number, and the number behind it, with the average in parentheses that meters print.
    re.compile(
        r"(?<![a-z])(?:time|elapsed|eta|secs?|seconds?|duration|latency|speed|throughput|fps|ips"
        r"|learning.rate|lr|mem|memory|mfu|flops|util|utilization|gpu|cpu|data|pid|port)(?![a-z])"
        rf"(?:[ _/](?:per|step|epoch|iter|batch|total|avg|used|max|is))*\W{{0,4}}{_VALUE}"
        rf"(?:\s*\(\s*{_VALUE}\s*\))?",
        re.I,
    ),
    # Device of a printed tensor.
    re.compile(r", (?:device|grad_fn)=[^,)]*"),
)
_COUNTED = re.compile(
    r"(?:acc\w*|top.?\d|prec\w*|recall|f1|map|iou|correct|right)(?:@\d)?\W*$", re.I
)
_PLACE = "•"


# Value, unit of the last digit, gate.
_Number = tuple[float, float, float]


@dataclass(frozen=True)
class PrintedLine:
    """Printed line.

    Attributes:
        key: its text without the compared numbers and those left out.
        text: as it was printed.
        numbers: the compared numbers, in their order.
    """

    key: str
    text: str
    numbers: tuple[_Number, ...]


def to_output(tell: Callable[[str], None]) -> None:
    """Report each line with a digit that this process writes to stdout or stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.write = _written(stream.write, tell)  # type: ignore[method-assign]


def _written(write: Callable[[str], int], tell: Callable[[str], None]) -> Callable[[str], int]:
    begun = ""

    def written(text: str) -> int:
        nonlocal begun
        *whole, begun = (begun + text).split("\n")
        for line in whole:
            # A bar that redraws itself shows when it was drawn, not how the training proceeds.
            if "\r" not in line and any(map(str.isdigit, line)):
                tell(line)
        return write(text)

    return written


def parse(text: str) -> PrintedLine | None:
    """Parse a line and its numbers; None if it has no number to compare."""
    line = text.strip()
    for pattern in _LEFT_OUT:
        line = pattern.sub("…", line)
    numbers = []

    def taken(match: re.Match[str]) -> str:
        number = match.group()
        gate = COUNTED_GATE if _COUNTED.search(line[: match.start()]) else PRINTED_GATE
        numbers.append((float(number), _unit(number), gate))
        return _PLACE

    key = " ".join(_NUMBER.sub(taken, line).split())
    return PrintedLine(key, text.strip(), tuple(numbers)) if numbers else None


def _unit(number: str) -> float:
    decimals = _DECIMALS.search(number)
    digits, exponent = (decimals.group(1), decimals.group(2)) if decimals else ("", None)
    power = exponent or (re.split("[eE]", number)[1] if "e" in number.lower() else "0")
    return float(10.0 ** (int(power) - len(digits)))


def first_unlike(
    original: Iterable[str],
    ours: Iterable[str],
    noisy: frozenset[str] = frozenset(),
    gate: float = 0.0,
) -> tuple[PrintedLine, PrintedLine] | None:
    """Return the first line with different numbers in the rewrite, from both sides.

    Args:
        original: what the original printed.
        ours: what the rewrite printed.
        noisy: keys of lines that are not compared.
        gate: relative gate of a number, where that is more than its own gate.
    """
    theirs, mine = _by_key(original), _by_key(ours)
    for key, lines in theirs.items():
        # Lines without a step are told apart by their order, but not if one side lacks some.
        if key in noisy or len(lines) != len(mine.get(key, ())):
            continue
        for line, other in zip(lines, mine[key], strict=True):
            if not _same(line, other, gate):
                return line, other
    return None


def noisy_keys(original: Sequence[str], again: Sequence[str]) -> frozenset[str]:
    """Return keys of the lines that two runs of one script print differently."""
    first, second = _by_key(original), _by_key(again)
    return frozenset(
        key
        for key, lines in first.items()
        if len(lines) != len(second.get(key, ())) or not all(map(_same, lines, second[key]))
    )


def _by_key(texts: Iterable[str]) -> dict[str, list[PrintedLine]]:
    by_key: dict[str, list[PrintedLine]] = {}
    for line in filter(None, map(parse, texts)):
        by_key.setdefault(line.key, []).append(line)
    return by_key


def _same(original: PrintedLine, ours: PrintedLine, gate: float = 0.0) -> bool:
    pairs = zip(original.numbers, ours.numbers, strict=True)
    return all(_near(theirs, mine, gate) for theirs, mine in pairs)


def _near(original: _Number, ours: _Number, least: float) -> bool:
    (theirs, unit, gate), (mine, other_unit, _) = original, ours
    if theirs == mine or (math.isnan(theirs) and math.isnan(mine)):
        return True
    # Two numbers on both sides of a half round to neighbors: a whole unit of the coarser one.
    return abs(mine - theirs) <= 1.001 * max(unit, other_unit) + max(gate, least) * abs(theirs)
