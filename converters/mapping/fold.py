r"""Repeated blocks as one rule: `layer.0.…`, `layer.1.…` as `layer\.(\d+)\.…` with `\1` in the path."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_NUMBER = re.compile(r"(\d+)")
# In keys only whole steps are numbers: `linear1` and `linear2` are two layers, not a repetition.
_STEP = re.compile(r"(?<![^.])(\d+)(?![^.])")
# With more varying steps in a key, either all of them are open or none is: subsets would be too many.
_MOST_COLUMNS = 5


@dataclass(frozen=True)
class FoldEntry:
    """Mapping of one key. `texts` may depend on the key's numbers; `rest` may not.

    Attributes:
        key: the key.
        texts: paths, indices and keys tied to.
        rest: everything else, equal for entries that may share a rule.
        alone: whether it needs a separate rule.
    """

    key: str
    texts: tuple[str, ...]
    rest: tuple[object, ...]
    alone: bool = False


@dataclass(frozen=True)
class Folded:
    r"""Rule for several entries.

    Attributes:
        pattern: a regular expression for their keys.
        texts: the texts, with `\1` where they follow the key.
        first: the first entry.
    """

    pattern: str
    texts: tuple[str, ...]
    first: FoldEntry


def fold(entries: Sequence[FoldEntry]) -> list[Folded]:
    """Return the smallest number of rules that the numbers allow, in key order; each key matches one."""
    by_form: dict[str, list[str]] = defaultdict(list)
    groups: dict[object, list[FoldEntry]] = defaultdict(list)
    for entry in entries:
        form = _STEP.sub("#", entry.key)
        by_form[form].append(entry.key)
        texts = tuple(_NUMBER.sub("#", text) for text in entry.texts)
        groups[entry.key if entry.alone else (form, texts, entry.rest)].append(entry)
    order = {entry.key: position for position, entry in enumerate(entries)}
    rules = [
        folded
        for group in groups.values()
        for folded in _fold(group, by_form[_STEP.sub("#", group[0].key)])
    ]
    return sorted(rules, key=lambda folded: order[folded.first.key])


def _fold(group: list[FoldEntry], keys: Iterable[str]) -> list[Folded]:
    """Return the rules of entries of one form; no rule may match other `keys` of that form."""
    columns = list(zip(*(_STEP.findall(entry.key) for entry in group), strict=True))
    varying = [at for at, column in enumerate(columns) if len(set(column)) > 1]
    if not varying:
        return [Folded(re.escape(entry.key), _escaped(entry.texts), entry) for entry in group]
    texts = _texts(group, columns, varying)
    if texts is not None:
        group_keys = {entry.key for entry in group}
        for open_columns in _subsets(varying):
            steps = {at: r"(\d+)" if at in open_columns else _choice(columns[at]) for at in varying}
            pattern = _pattern(group[0].key, steps)
            expression = re.compile(pattern)
            if {key for key in keys if expression.fullmatch(key)} == group_keys:
                return [Folded(pattern, texts, group[0])]
    parts: dict[str, list[FoldEntry]] = defaultdict(list)
    for entry in group:
        parts[_STEP.findall(entry.key)[varying[-1]]].append(entry)
    return [folded for part in parts.values() for folded in _fold(part, keys)]


def _subsets(columns: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield subsets of columns, larger ones first: a model with more layers has other numbers there."""
    if len(columns) > _MOST_COLUMNS:
        yield from (tuple(columns), ())
        return
    for size in range(len(columns), -1, -1):
        yield from itertools.combinations(columns, size)


def _pattern(key: str, groups: dict[int, str]) -> str:
    pieces = _STEP.split(key)
    return "".join(
        groups.get(at // 2, piece) if at % 2 else re.escape(piece)
        for at, piece in enumerate(pieces)
    )


def _choice(column: Sequence[str]) -> str:
    return f"({'|'.join(dict.fromkeys(column))})"


def _texts(
    group: list[FoldEntry], columns: list[tuple[str, ...]], varying: list[int]
) -> tuple[str, ...] | None:
    """Return the texts with references; None if a number in them does not come from the key."""
    templates = []
    for place, text in enumerate(group[0].texts):
        pieces = _NUMBER.split(text)
        for at in range(1, len(pieces), 2):
            column = tuple(_NUMBER.findall(entry.texts[place])[at // 2] for entry in group)
            if len(set(column)) == 1:
                continue
            same = [number for number, of in enumerate(varying, 1) if columns[of] == column]
            if not same:
                return None
            pieces[at] = f"\\{same[0]}"
        templates.append(_joined(pieces))
    return tuple(templates)


def _joined(pieces: list[str]) -> str:
    """Join pieces of text with their own backslashes doubled; every second piece may be a reference."""
    return "".join(
        piece if at % 2 else piece.replace("\\", r"\\") for at, piece in enumerate(pieces)
    )


def _escaped(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(text.replace("\\", r"\\") for text in texts)
