"""Parser of layouts, parts and joins as written in mapping files: `transpose(1, 0) | split(1, 8, 64)`.

A number of a split, merge or share may be an expression of the file's sizes: `split(1, heads, -1)`. One side
of a split or merge may be -1: it follows from the array's shape.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from converters.layers.join import ALONE, SUM, ComputedBefore, Concat, Grid, Join, Stack
from converters.layers.layout import (
    REST,
    UNCHANGED,
    Flip,
    Layout,
    Merge,
    Part,
    Permute,
    Plus,
    Share,
    Split,
    Times,
    chain,
)

_Made = TypeVar("_Made")

_CALL = re.compile(r"\s*(?P<name>[a-z_]+)\s*(?:\((?P<numbers>[-+.e\d,\s]*)\))?\s*")
_WHOLE = re.compile(r"\s*\d*\s*")
# A call whose numbers are not all written out.
_SIZED = re.compile(r"\s*(?P<name>split|merge|share)\s*\((?P<numbers>.*)\)\s*")

Sizes = Mapping[str, Any]
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{function.__name__: function for function in (int, round, max, min)},
    **{f"math.{function.__name__}": function for function in (math.ceil, math.floor)},
}

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


def parse_layout(text: str, sizes: Sizes | None = None) -> Layout:
    """Parse a layout.

    Args:
        text: the layout.
        sizes: values of the names in it.

    Raises:
        ValueError: the text is invalid; the message gives the reason and the known forms.
    """
    parts = [_with_sizes(part, sizes or {}) for part in text.split("|")]
    return chain([_computing(part) or _parsed(part, _LAYOUTS, "transform") for part in parts])


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
    return _parsed(text, {"slice": _slice}, "part")


def parse_share(text: str, sizes: Sizes | None = None) -> Part | Share:
    """Parse a part of a tensor of any size: `slice(axis, start, stop)`, or `share(axis, number, of)`.

    Raises:
        ValueError: the text is invalid.
    """
    known: dict[str, Callable[[tuple[int, ...]], Part | Share]] = {
        "slice": _slice,
        "share": lambda numbers: Share(*numbers),
    }
    return _parsed(_with_sizes(text, sizes or {}), known, "part")


def _slice(numbers: tuple[int, ...]) -> Part:
    axis, start, stop = numbers
    return Part(axis, start, stop)


def _with_sizes(text: str, sizes: Sizes) -> str:
    """A part of a layout with the values of its expressions."""
    call = _SIZED.fullmatch(text)
    if call is None or all(_WHOLE.fullmatch(word) for word in call["numbers"].split(",")):
        return text
    try:
        parsed = ast.parse(f"({call['numbers']},)", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"{text.strip()!r} has numbers that are not whole") from None
    assert isinstance(parsed, ast.Tuple)
    numbers = [_value(node, sizes) for node in parsed.elts]
    open_sides = numbers[1:].count(REST)
    if open_sides and (call["name"] == "share" or open_sides > 1 or len(numbers) < 3):
        raise ValueError(f"{text.strip()!r}: one side of a split or merge may be {REST}")
    if not all(
        type(number) is int and number >= (REST if at else 0) for at, number in enumerate(numbers)
    ):
        raise ValueError(f"{text.strip()!r} has numbers that are not whole")
    return f"{call['name']}({', '.join(map(str, numbers))})"


def _value(node: ast.expr, sizes: Sizes) -> Any:
    """Value of an expression of sizes.

    Raises:
        ValueError: it has other names or operations, or no value.
    """
    try:
        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.Name(id=name) if name in sizes:
                return sizes[name]
            case ast.Name(id=name):
                there = f"there are {', '.join(sizes)}" if sizes else "there are none"
                raise ValueError(f"{name} is no size of this file; {there}")
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return -_value(inner, sizes)
            case ast.BinOp(left=left, op=kind, right=right) if type(kind) in _OPERATORS:
                return _OPERATORS[type(kind)](_value(left, sizes), _value(right, sizes))
            case ast.Subscript(value=inner, slice=ast.Constant(value=int(place))):
                return _value(inner, sizes)[place]
            case ast.Call(func=function, args=arguments, keywords=[]) if called := _FUNCTIONS.get(
                ast.unparse(function)
            ):
                return called(*(_value(argument, sizes) for argument in arguments))
    except (TypeError, ArithmeticError, IndexError) as error:
        raise ValueError(f"{ast.unparse(node)} has no value ({error})") from None
    raise ValueError(f"{ast.unparse(node)} is no expression of sizes")


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
    open_sides = call["name"] in ("split", "merge")
    if not all(
        _WHOLE.fullmatch(word) or (open_sides and at and word.strip() == str(REST))
        for at, word in enumerate(words)
    ):
        raise ValueError(f"{text.strip()!r} has numbers that are not whole")
    numbers = tuple(int(word) for word in words if word.strip())
    try:
        return known[call["name"]](numbers)
    except (TypeError, IndexError, ValueError) as error:
        raise ValueError(f"{text.strip()!r} has wrong numbers ({error})") from None
