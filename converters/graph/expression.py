"""Expressions of generated source: `ast` nodes, made from text with gaps.

`ast.unparse` adds the parentheses.
"""

from __future__ import annotations

import ast
import io
import math
import re
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch


class Hole(ast.expr):
    """A placeholder in an expression: a size that depends on the inputs, or a setting of the model.

    The writer of a method's body fills it (`filled`).
    """

    _fields = ()

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


# The number of a module in its list, in the expression of a setting.
INDEX = "i"


class SettingInt(int):
    """An integer computed from the model's settings.

    Attributes:
        text: its expression: "hidden_size // num_attention_heads"; "" if no setting gives it.
        parts: the settings in `text`, with their values.
        local: the name of the number in its module; "" if unknown.
        holder: path of the list of modules whose member the number belongs to, if `text` has that member's
            number (`INDEX`); else "".
        place: the member's number in that list.
    """

    text: str
    parts: Mapping[str, Any]
    local: str
    holder: str
    place: int = 0

    def __new__(
        cls,
        value: int,
        text: str = "",
        parts: Mapping[str, Any] | None = None,
        local: str = "",
        holder: str = "",
    ) -> SettingInt:
        """The number, with its expression."""
        number = super().__new__(cls, value)
        number.text, number.parts, number.local = text, parts or {}, local
        number.holder = holder
        return number


class SettingFloat(float):
    """A real number computed from the model's settings (a norm's epsilon), see `SettingInt`."""

    text: str
    parts: Mapping[str, Any]
    local: str
    holder: str
    place: int = 0

    def __new__(
        cls,
        value: float,
        text: str = "",
        parts: Mapping[str, Any] | None = None,
        local: str = "",
        holder: str = "",
    ) -> SettingFloat:
        """The number, with its expression."""
        number = super().__new__(cls, value)
        number.text, number.parts, number.local = text, parts or {}, local
        number.holder = holder
        return number


# The streams of random numbers that a port asks its caller for, by Flax's names.
NOISE, DROPOUT = "noise", "dropout"


@dataclass(frozen=True, eq=False)
class Rng:
    """A random key that is used once.

    Attributes:
        stream: the module's stream that gives the key.
    """

    stream: str

    @property
    def code(self) -> ast.expr:
        """The expression in a module's method."""
        return method(ast.Name("self", ast.Load()), "make_rng", self.stream)


def code(text: str, **parts: Any) -> ast.expr:
    """The expression `text` with its gaps filled: `code("{x} + {y}", x=x, y=2)`.

    A gap is `{name}` and takes whatever `as_code` takes. `{*name}` in a call's arguments or in a
    list takes a sequence, whose elements follow one another.
    """
    tree = _parsed(text, tuple(sorted(parts)))
    return _Fill(parts).visit(_copy(tree))


def as_code(value: Any) -> ast.expr:
    """A value as an expression: objects with `code` (tensors), expressions, numbers, text, dtypes,
    sequences.

    Raises:
        TypeError: the value cannot be written as source.
    """
    if isinstance(value, ast.expr):
        return value
    if hasattr(value, "code"):
        return as_code(value.code)
    if isinstance(value, SettingInt | SettingFloat):
        return Hole(value) if value.text or value.local else as_code(value + 0)
    match value:
        case bool() | None | str() | int():
            if isinstance(value, int) and not isinstance(value, bool) and value < 0:
                return ast.UnaryOp(ast.USub(), ast.Constant(-value))
            return ast.Constant(value)
        case float():
            return _real(value)
        case complex():
            return ast.Constant(value)
        case torch.dtype():
            return _name(dtype_name(value))
        case tuple():
            return ast.Tuple([as_code(element) for element in value], ast.Load())
        case list():
            return ast.List([as_code(element) for element in value], ast.Load())
    raise TypeError(f"{value!r} cannot be written as source")


def call(function: str, *arguments: Any, **named: Any) -> ast.expr:
    """`function(*arguments, **named)`."""
    keywords = [ast.keyword(name, as_code(value)) for name, value in named.items()]
    return ast.Call(_name(function), [as_code(argument) for argument in arguments], keywords)


def method(value: Any, name: str, *arguments: Any, **named: Any) -> ast.expr:
    """`value.name(*arguments, **named)`."""
    keywords = [ast.keyword(key, as_code(argument)) for key, argument in named.items()]
    function = ast.Attribute(as_code(value), name, ast.Load())
    return ast.Call(function, [as_code(argument) for argument in arguments], keywords)


# JAX's dtypes for torch's, without jax_enable_x64: 64 bits become 32.
_DTYPES = {
    torch.float64: "float32",
    torch.int64: "int32",
    torch.complex128: "complex64",
    torch.bool: "bool_",
}


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype as source text: torch.int64 → "jnp.int32", as JAX has no 64 bits by default."""
    return f"jnp.{_DTYPES.get(dtype, str(dtype).removeprefix('torch.'))}"


def _real(value: float) -> ast.expr:
    if math.isfinite(value):
        number = ast.Constant(abs(_shortest(value)))
        return ast.UnaryOp(ast.USub(), number) if math.copysign(1, value) < 0 else number
    if math.isnan(value):
        return _name("jnp.nan")
    return _name("jnp.inf") if value > 0 else ast.UnaryOp(ast.USub(), _name("jnp.inf"))


def _shortest(value: float) -> float:
    """The number with the fewest digits that is the same in float32 and rounds the same in 16 bits.

    0.1 for 0.10000000149011612, which is 0.1 in float32. A number that float32 does not have stays, and so
    does one beyond float16: it may be the limit of a dtype, which is known by its value.
    """
    in_float32 = np.float32(value)
    if float(in_float32) != value or abs(value) > torch.finfo(torch.float16).max:
        return value
    short = float(str(in_float32))
    pair = torch.tensor([value, short], dtype=torch.float64)
    alike = all(len(pair.to(dtype).unique()) == 1 for dtype in (torch.float16, torch.bfloat16))
    return short if alike and len(repr(short)) < len(repr(value)) else value


def plain_exponents(source: str) -> str:
    """Source with exponents as one writes them: `1e-6` for the `1e-06` of Python's `repr`."""
    lines = source.splitlines(keepends=True)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    numbers = [token for token in tokens if token.type == tokenize.NUMBER]
    for token in reversed(numbers):
        (row, first), (_, last) = token.start, token.end
        line = lines[row - 1]
        short = re.sub(r"e([-+]?)0+(?=\d)", r"e\1", token.string)
        lines[row - 1] = line[:first] + short + line[last:]
    return "".join(lines)


def _name(dotted: str) -> ast.expr:
    first, *others = dotted.split(".")
    expression: ast.expr = ast.Name(first, ast.Load())
    for other in others:
        expression = ast.Attribute(expression, other, ast.Load())
    return expression


@cache
def _parsed(text: str, names: tuple[str, ...]) -> ast.expr:
    for name in names:
        text = text.replace(f"{{*{name}}}", f"*_gap_{name}").replace(f"{{{name}}}", f"_gap_{name}")
    return ast.parse(text, mode="eval").body


def _copy(tree: Any) -> Any:
    if isinstance(tree, ast.AST):
        copy = type(tree).__new__(type(tree))
        # All fields at once: Python 3.13 warns of a node without its fields.
        ast.AST.__init__(copy, **{name: _copy(getattr(tree, name, None)) for name in tree._fields})
        return copy
    return [_copy(element) for element in tree] if isinstance(tree, list) else tree


class _Fill(ast.NodeTransformer):
    def __init__(self, parts: Mapping[str, Any]) -> None:
        self.parts = parts

    def visit_Name(self, node: ast.Name) -> ast.expr:
        name = node.id.removeprefix("_gap_")
        return as_code(self.parts[name]) if name != node.id else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        node.args = self._spread(node.args)
        return self._rest(node)

    def visit_Tuple(self, node: ast.Tuple) -> ast.expr:
        node.elts = self._spread(node.elts)
        return node

    def visit_List(self, node: ast.List) -> ast.expr:
        node.elts = self._spread(node.elts)
        return node

    def _rest(self, node: ast.Call) -> ast.expr:
        node.func = self.visit(node.func)
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        return node

    def _spread(self, elements: list[ast.expr]) -> list[ast.expr]:
        spread: list[ast.expr] = []
        for element in elements:
            starred = element.value if isinstance(element, ast.Starred) else None
            if isinstance(starred, ast.Name) and starred.id.startswith("_gap_"):
                spread += map(as_code, self.parts[starred.id.removeprefix("_gap_")])
            else:
                spread.append(self.visit(element))
        return spread
