"""Parser of layouts, parts and joins as written in mapping files: `transpose(1, 0) | split(1, 8, 64)`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from converters.layers.join import ALONE, SUM, ComputedBefore, Concat, Grid, Join, Stack
from converters.layers.layout import (
    UNCHANGED,
    Flip,
    Layout,
    Merge,
    Part,
    Permute,
    Plus,
    Split,
    Times,
    chain,
)

_Made = TypeVar("_Made")

_CALL = re.compile(r"\s*(?P<name>[a-z_]+)\s*(?:\((?P<numbers>[-+.e\d,\s]*)\))?\s*")
_WHOLE = re.compile(r"\s*\d*\s*")

_LAYOUTS: dict[str, Callable[[tuple[int, ...]], Layout]] = {
    "unchanged": lambda numbers: UNCHANGED,
    "transpose": Permute,
    "flip": Flip,
    "split": lambda numbers: Split(numbers[0], numbers[1:]),
    "merge": lambda numbers: Merge(numbers[0], numbers[1:]),
}
# Forms with one number, which need not be an integer.
_COMPUTING: dict[str, Callable[[float], Layout]] = {
    "times": Times,
    "over": lambda number: Times(number, over=True),
    "plus": Plus,
}
_JOINS: dict[str, Callable[[tuple[int, ...]], Join]] = {
    "alone": lambda numbers: ALONE,
    "sum": lambda numbers: SUM,
    "stack": lambda numbers: Stack(*numbers),
    "grid": lambda numbers: Grid(numbers[0], numbers[1:]),
    "concat": lambda numbers: Concat(*numbers),
    "computed": ComputedBefore,
}


def parse_layout(text: str) -> Layout:
    """Parse a layout.

    Raises:
        ValueError: the text is invalid; the message gives the reason and the known forms.
    """
    return chain(
        [_computing(part) or _parsed(part, _LAYOUTS, "transform") for part in text.split("|")]
    )


def parse_join(text: str) -> Join:
    """Parse a join.

    Raises:
        ValueError: the text is invalid.
    """
    return _parsed(text, _JOINS, "join")


def parse_part(text: str) -> Part:
    """Parse a part: `slice(axis, start, stop)`.

    Raises:
        ValueError: the text is invalid.
    """
    return _parsed(text, {"slice": lambda numbers: Part(*numbers)}, "part")


def _computing(text: str) -> Layout | None:
    call = _CALL.fullmatch(text)
    if call is None or call["name"] not in _COMPUTING:
        return None
    try:
        return _COMPUTING[call["name"]](float(call["numbers"] or ""))
    except ValueError as error:
        raise ValueError(f"{text.strip()!r} has a wrong number ({error})") from None


def _parsed(text: str, known: dict[str, Callable[[tuple[int, ...]], _Made]], what: str) -> _Made:
    call = _CALL.fullmatch(text)
    if call is None or call["name"] not in known:
        there = [*known, *(_COMPUTING if what == "transform" else ())]
        raise ValueError(f"{text.strip()!r} is no {what}; there are {', '.join(there)}")
    words = (call["numbers"] or "").split(",")
    if not all(_WHOLE.fullmatch(word) for word in words):
        raise ValueError(f"{text.strip()!r} has numbers that are not whole")
    numbers = tuple(int(word) for word in words if word.strip())
    try:
        return known[call["name"]](numbers)
    except (TypeError, IndexError, ValueError) as error:
        raise ValueError(f"{text.strip()!r} has wrong numbers ({error})") from None
