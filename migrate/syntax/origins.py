"""Lines of a script that the lines of its rewritten form come from, and the lines that messages name."""

from __future__ import annotations

import difflib
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

WORD = re.compile(r"\w+")
ALIKE = 0.4  # similarity of the words of two lines
NEARLY = 0.75  # the same of a line that was moved and changed
MOST_PAIRS = 3600  # number of lines compared in one changed range
# Marks of a line in the text of which a message is made: characters that no text has.
OPEN, BETWEEN, MORE, CLOSE = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"
MARKED = re.compile(f"{OPEN}([^{BETWEEN}{MORE}]*)([{BETWEEN}{MORE}])([0-9]+){CLOSE}")
ADDED = "a line that the rewrite added"
# Change of lines: difflib's tag, and the ranges before and after.
Opcode = tuple[str, int, int, int, int]


@dataclass(frozen=True)
class Related:
    """A line that a message names.

    Args:
        line: from 1.
        path: the file. None: the file of the finding.
        cell: the cell of a notebook, from 1. `line` then is a line of the cell.
        continues: whether it continues a list: the 8 in `line 7, 8`.
    """

    line: int
    path: Path | None = None
    cell: int | None = None
    continues: bool = False

    def __str__(self) -> str:
        """Return the line as messages name it."""
        if self.path is not None:
            return f"{self.path.name}:{self.line}"
        if self.cell is not None:
            return f"line {self.line} of cell {self.cell}"
        return str(self.line) if self.continues else f"line {self.line}"


def at_line(line: int, path: Path | None = None) -> str:
    """Return the marked text for a line that a message names, of the file of the finding or of `path`."""
    return f"{OPEN}{path or ''}{BETWEEN}{line}{CLOSE}"


def at_lines(lines: Iterable[int]) -> str:
    """Return the marked text for several lines of the file of the finding: `line 7, 8`."""
    first, *more = lines
    return ", ".join([at_line(first), *(f"{OPEN}{MORE}{line}{CLOSE}" for line in more)])


class Message(str):
    """Text of a finding or an edit, with the lines that it names as data.

    Nothing reads the text for them: where lines move, `moved` writes it anew.
    """

    pieces: tuple[str | Related, ...]

    def __new__(cls, *pieces: str | Related) -> Self:
        """Return the message of these pieces."""
        message = super().__new__(cls, "".join(map(str, pieces)))
        message.pieces = pieces
        return message

    def __getnewargs__(self) -> tuple[str | Related, ...]:  # type: ignore[override]
        """Return what makes the message again in another process."""
        return self.pieces

    @classmethod
    def of(cls, text: str) -> Message:
        """Return the message of a text in which lines are marked; a message is returned as it is."""
        if isinstance(text, Message):
            return text
        parts = MARKED.split(text)
        pieces: list[str | Related] = [parts[0]]
        for path, mark, line, rest in zip(*(parts[start::4] for start in range(1, 5)), strict=True):
            related = Related(int(line), Path(path) if path else None, continues=mark == MORE)
            pieces += [related, rest]
        return cls(*pieces)

    @property
    def related(self) -> tuple[Related, ...]:
        """The lines that the message names."""
        return tuple(piece for piece in self.pieces if isinstance(piece, Related))

    def moved(self, where: Callable[[Related], Related | str]) -> Message:
        """Return the message with other lines.

        Args:
            where: the line that a line moves to, or a text for one that has no place any more.
        """
        if not self.related:
            return self
        return Message(*(where(p) if isinstance(p, Related) else p for p in self.pieces))

    def ended(self, text: str) -> Message:
        """Return the message with more text at its end."""
        return Message(*self.pieces, *Message.of(text).pieces)


def at_origin(message: str, origin: Mapping[int, tuple[int, int]]) -> Message:
    """Return `message` with the lines of its own file changed to those of the original."""

    def where(related: Related) -> Related | str:
        if related.path is not None:
            return related
        return replace(related, line=origin[related.line][0]) if related.line in origin else ADDED

    return Message.of(message).moved(where)


def origins(before: Sequence[str], after: Sequence[str]) -> dict[int, tuple[int, int]]:
    """Return, for lines (from 1) of `after`, the line of `before` that they come from.

    The second value is the number of columns that the line has moved to the left. Lines are compared without
    their indentation, which a block around them changes. A changed line comes from the line that it replaced;
    an added line has no origin.
    """
    if before == after:
        return {number: (number, 0) for number in range(1, len(before) + 1)}
    old, new = [line.strip() for line in before], [line.strip() for line in after]
    lines = {}
    for tag, i1, i2, j1, j2 in _opcodes(old, new):
        if tag in ("delete", "insert"):
            continue
        pairs: Iterable[tuple[int, int]] = zip(range(i2 - i1), range(j2 - j1), strict=False)
        if tag == "replace":
            pairs = _paired(old[i1:i2], new[j1:j2])
        for i, j in pairs:
            i, j = i + i1, j + j1
            shift = _indentation(before[i]) - _indentation(after[j])
            lines[j + 1] = (i + 1, shift)
    for i, j in _moved(old, new, lines):
        lines[j + 1] = (i + 1, _indentation(before[i]) - _indentation(after[j]))
    return lines


def _moved(
    old: Sequence[str], new: Sequence[str], known: Mapping[int, tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield the lines that were moved, such as a read moved below its step, unchanged or nearly so."""
    taken = {line for line, _ in known.values()}
    gone: dict[str, list[int]] = defaultdict(list)
    come: dict[str, list[int]] = defaultdict(list)
    for i, text in enumerate(old):
        if i + 1 not in taken and WORD.search(text):
            gone[text].append(i)
    for j, text in enumerate(new):
        if j + 1 not in known and text in gone:
            come[text].append(j)
    for text, places in come.items():
        if len(places) == len(gone[text]):
            yield from zip(gone[text], places, strict=True)
    lost = [i for text, at in gone.items() if text not in come for i in at]
    appeared = [j for j in range(len(new)) if j + 1 not in known and new[j] not in gone]
    if len(lost) * len(appeared) <= MOST_PAIRS:
        yield from _moved_and_changed(old, new, lost, appeared)


def _moved_and_changed(
    old: Sequence[str], new: Sequence[str], lost: Sequence[int], appeared: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yield the lines of `appeared` that share most words with one line of `lost`, whose device changed."""
    left = set(lost)
    for j in appeared:
        alike = {i: _alike(old[i], new[j]) for i in left}
        best = max(alike, key=lambda i: (alike[i], -i), default=None)
        if best is not None and alike[best] >= NEARLY and len(WORD.findall(new[j])) > 2:
            left.discard(best)
            yield best, j


def _opcodes(before: Sequence[str], after: Sequence[str]) -> Iterator[Opcode]:
    """Yield the changes of the lines, as difflib does.

    The time of difflib grows with the square of the number of frequent lines. So lines that occur once on
    each side are matched first (patience diff), and difflib compares the ranges between them.
    """
    i = j = 0
    for next_i, next_j in [*_anchors(before, after), (len(before), len(after))]:
        matcher = difflib.SequenceMatcher(None, before[i:next_i], after[j:next_j], autojunk=False)
        for tag, i1, i2, j1, j2 in matcher.get_opcodes():
            yield tag, i + i1, i + i2, j + j1, j + j2
        if next_i < len(before):
            yield "equal", next_i, next_i + 1, next_j, next_j + 1
        i, j = next_i + 1, next_j + 1


def _anchors(before: Sequence[str], after: Sequence[str]) -> list[tuple[int, int]]:
    """Return the longest run of pairs of lines that occur once on each side and keep their order."""
    times = Counter(before), Counter(after)
    once = {line: j for j, line in enumerate(after) if times[1][line] == 1}
    pairs = [
        (i, once[line]) for i, line in enumerate(before) if times[0][line] == 1 and line in once
    ]
    # The longest increasing subsequence: for each length, the pair with the smallest end so far.
    ends: list[int] = []
    last: list[int] = []  # for each length, the number of its last pair
    previous: list[int] = []
    for number, (_, j) in enumerate(pairs):
        length = bisect_left(ends, j)
        previous.append(last[length - 1] if length else -1)
        ends[length : length + 1] = [j]
        last[length : length + 1] = [number]
    chain = []
    number = last[-1] if last else -1
    while number >= 0:
        chain.append(pairs[number])
        number = previous[number]
    return chain[::-1]


def _paired(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the origin in `before` of each line of `after` that replaced it.

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


def _alike(line: str, other: str) -> float:
    """Return the fraction of words that two lines share: from 0 to 1."""
    words, others = set(WORD.findall(line)), set(WORD.findall(other))
    return 2 * len(words & others) / max(1, len(words) + len(others))


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())
