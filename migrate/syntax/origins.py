"""Lines of a script that the lines of its rewritten form come from."""

from __future__ import annotations

import difflib
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

WORD = re.compile(r"\w+")
ALIKE = 0.4  # similarity of the words of two lines
NEARLY = 0.75  # the same of a line that was moved and changed
MOST_PAIRS = 3600  # number of lines compared in one changed range
# Change of lines: difflib's tag, and the ranges before and after.
Opcode = tuple[str, int, int, int, int]


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
