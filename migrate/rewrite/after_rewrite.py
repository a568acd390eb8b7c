"""The hazards that a rewritten script still has, at the lines of the original."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from migrate.check.check import check_facts
from migrate.check.common import ImportHazard
from migrate.check.config import Config
from migrate.check.finding import UNREADABLE, UNUSED_IGNORE
from migrate.check.hazard import Severity
from migrate.check.rules import all_hazards
from migrate.reading.facts import Facts
from migrate.rewrite.remaining import NAME as REMAINING

# Line, column, rule and message of what the rewrite reports.
Spoken = tuple[int, int, str, str]
WORD = re.compile(r"\w+")
ALIKE = 0.4  # of the words of two lines
MOST_PAIRS = 3600  # of lines compared in one changed place


@dataclass(frozen=True)
class Left:
    """A hazard of the rewritten script.

    Args:
        line, column: where in the original, both from 1.
        code: the hazard's code.
        message: what happens on a TPU, and what to do.
    """

    line: int
    column: int
    code: str
    message: str


def after_rewrite(
    original: str, rewritten: Facts, spoken: Sequence[Spoken] = ()
) -> tuple[Left, ...]:
    """Return what the rewrite did not handle and would fail, hang or be slow on a TPU.

    Args:
        original: the text of the script before the rewrite.
        rewritten: the script after it, or as it was where nothing changed.
        spoken: line, column, rule and message of what the rewrite itself reports, in the original. A
            hazard of which its rule speaks there is not said twice, nor the import of a library whose
            uses are reported.
    """
    return left_of(rewritten, original, spoken)


def left_of(
    facts: Facts, original: str, spoken: Sequence[Spoken], whole: bool = True
) -> tuple[Left, ...]:
    """Return the same of a script of which more is known; unless `whole`, of what other files' steps run."""
    lines = original.splitlines()
    origin = origins(lines, facts.context.source.positions.code.splitlines())
    hazards = {hazard.code: hazard for hazard in all_hazards()}
    found = []
    for one in check_facts(facts, Config(ignore=(UNREADABLE, UNUSED_IGNORE)), whole):
        if one.severity is Severity.INFO or one.line not in origin:
            continue
        line, shift = origin[one.line]
        column = max(1, one.column + shift)
        end = max(column, one.end_column + shift)
        rules = hazards[one.code].spoken_by
        if any(
            said == line and (rule in rules or (rule == REMAINING and column <= at < end))
            for said, at, rule, _ in spoken
        ):
            continue
        if isinstance(hazards[one.code], ImportHazard):
            library = re.split(r"[.:]", one.message)[0]
            if any(message.startswith((f"{library}.", f"{library}:")) for *_, message in spoken):
                continue
        found.append(Left(line, column, one.code, _at_origin(one.message, origin)))
    return tuple(found)


def run_elsewhere(facts: Facts) -> tuple[Path, ...]:
    """Return the other files of the project whose functions the steps of a script call, in order."""
    effects, here = facts.context.effects, facts.context.source.path.resolve()
    paths = {one.path: None for call, _ in facts.steps.calls for one in effects.definitions(call)}
    return tuple(path for path in paths if path != here)


def _at_origin(message: str, origin: Mapping[int, tuple[int, int]]) -> str:
    """Return `message` with the lines that it names as those of the original."""

    def line(match: re.Match[str]) -> str:
        found = origin.get(int(match[1]))
        return f"line {found[0]}" if found else "a line that the rewrite added"

    return re.sub(r"\bline (\d+)", line, message)


def origins(before: Sequence[str], after: Sequence[str]) -> dict[int, tuple[int, int]]:
    """Return, for lines (from 1) of `after`, the line of `before` that they come from.

    With it comes by how many columns the line has moved to the left. Lines are compared without their
    indentation, which a block put around them changes. A changed line comes from the line that it took
    the place of; a line that was added has none.
    """
    if before == after:
        return {number: (number, 0) for number in range(1, len(before) + 1)}
    stripped = [line.strip() for line in before], [line.strip() for line in after]
    matcher = difflib.SequenceMatcher(None, *stripped, autojunk=False)
    found = {}
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag in ("delete", "insert"):
            continue
        pairs: Iterable[tuple[int, int]] = zip(range(i2 - i1), range(j2 - j1), strict=False)
        if tag == "replace":
            pairs = _paired(stripped[0][i1:i2], stripped[1][j1:j2])
        for i, j in pairs:
            i, j = i + i1, j + j1
            shift = _indentation(before[i]) - _indentation(after[j])
            found[j + 1] = (i + 1, shift)
    return found


def _paired(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield, for the lines of `after` that took the place of `before`, the line that each comes from.

    Lines that share words belong together, in their order; a line that shares none was added before the
    next one.
    """
    first = 0
    for j, line in enumerate(after):
        rest = range(first, len(before)) if len(before) * len(after) <= MOST_PAIRS else ()
        alike = {i: _alike(before[i], line) for i in rest}
        best = max(alike, key=lambda i: (alike[i], -i), default=first)
        matches = not alike or alike[best] >= ALIKE
        yield min(best if matches else first, len(before) - 1), j
        first = best + 1 if matches else first


def _alike(one: str, other: str) -> float:
    """Return how much of their words two lines share: from 0 to 1."""
    words, others = set(WORD.findall(one)), set(WORD.findall(other))
    return 2 * len(words & others) / max(1, len(words) + len(others))


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())
