"""Expressions of the source that is written: `ast` nodes, made from text with gaps.

`ast.unparse` knows where parentheses are needed, so that nobody here has to.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch


class Hole(ast.expr):
    """Something that is not text yet: a size that depends on the inputs, or a setting of the model.

    Whoever writes the body of a method fills it (`filled`).
    """

    _fields = ()

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class SettingInt(int):
    """An integer that the settings of the model give.

    Attributes:
        text: how: "hidden_size // num_attention_heads"; "" where none does.
        parts: the settings in it, with their values.
        local: what the module calls it that has the number; "" if it does not say.
    """

    text: str
    parts: Mapping[str, Any]
    local: str

    def __new__(
        cls,
        value: int,
        text: str = "",
        parts: Mapping[str, Any] | None = None,
        local: str = "",
    ) -> SettingInt:
        """The number, with what gives it."""
        made = super().__new__(cls, value)
        made.text, made.parts, made.local = text, parts or {}, local
        return made


class SettingFloat(float):
    """As `SettingInt`, for a real number (a norm's epsilon)."""

    text: str
    parts: Mapping[str, Any]
    local: str

    def __new__(
        cls,
        value: float,
        text: str = "",
        parts: Mapping[str, Any] | None = None,
        local: str = "",
    ) -> SettingFloat:
        """The number, with what gives it."""
        made = super().__new__(cls, value)
        made.text, made.parts, made.local = text, parts or {}, local
        return made


# The streams of random numbers that a port asks its caller for, as Flax names them.
NOISE, DROPOUT = "noise", "dropout"


@dataclass(frozen=True, eq=False)
class Rng:
    """A key that is used once.

    Attributes:
        stream: which of the module's streams gives it.
    """

    stream: str

    @property
    def code(self) -> ast.expr:
        """The expression in a module's method."""
        return method(ast.Name("self", ast.Load()), "make_rng", self.stream)


def code(text: str, **parts: Any) -> ast.expr:
    """The expression that `text` is with its gaps filled: `code("{x} + {y}", x=x, y=2)`.

    A gap is `{name}`. It takes whatever `as_code` takes; a `{*name}` in a call's arguments or in a list takes
    a sequence, whose elements come one after the other.
    """
    tree = _parsed(text, tuple(sorted(parts)))
    return _Fill(parts).visit(_copy(tree))


def as_code(value: Any) -> ast.expr:
    """A value as an expression: what has code (a tensor), an expression, numbers, text, dtypes, sequences.

    Raises:
        TypeError: there is no way to write it.
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
            return ast.Tuple([as_code(one) for one in value], ast.Load())
        case list():
            return ast.List([as_code(one) for one in value], ast.Load())
    raise TypeError(f"{value!r} cannot be written as source")


def call(function: str, *arguments: Any, **named: Any) -> ast.expr:
    """`function(*arguments, **named)`."""
    keywords = [ast.keyword(name, as_code(value)) for name, value in named.items()]
    return ast.Call(_name(function), [as_code(one) for one in arguments], keywords)


def method(value: Any, name: str, *arguments: Any, **named: Any) -> ast.expr:
    """`value.name(*arguments, **named)`."""
    keywords = [ast.keyword(key, as_code(one)) for key, one in named.items()]
    function = ast.Attribute(as_code(value), name, ast.Load())
    return ast.Call(function, [as_code(one) for one in arguments], keywords)


# What JAX makes of torch's dtypes without jax_enable_x64: 64 bits become 32.
_DTYPES = {
    torch.float64: "float32",
    torch.int64: "int32",
    torch.complex128: "complex64",
    torch.bool: "bool_",
}


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype as it stands in source: torch.int64 → "jnp.int32", as JAX has no 64 bits by default."""
    return f"jnp.{_DTYPES.get(dtype, str(dtype).removeprefix('torch.'))}"


def _real(value: float) -> ast.expr:
    if math.isfinite(value):
        number = ast.Constant(abs(value))
        return ast.UnaryOp(ast.USub(), number) if math.copysign(1, value) < 0 else number
    if math.isnan(value):
        return _name("jnp.nan")
    return _name("jnp.inf") if value > 0 else ast.UnaryOp(ast.USub(), _name("jnp.inf"))


def _name(dotted: str) -> ast.expr:
    first, *others = dotted.split(".")
    found: ast.expr = ast.Name(first, ast.Load())
    for other in others:
        found = ast.Attribute(found, other, ast.Load())
    return found


@cache
def _parsed(text: str, names: tuple[str, ...]) -> ast.expr:
    for name in names:
        text = text.replace(f"{{*{name}}}", f"*_gap_{name}").replace(f"{{{name}}}", f"_gap_{name}")
    return ast.parse(text, mode="eval").body


def _copy(tree: Any) -> Any:
    if isinstance(tree, ast.AST):
        made = type(tree).__new__(type(tree))
        # Given all at once: Python 3.13 warns of a node without its fields.
        ast.AST.__init__(made, **{name: _copy(getattr(tree, name, None)) for name in tree._fields})
        return made
    return [_copy(one) for one in tree] if isinstance(tree, list) else tree


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
        made: list[ast.expr] = []
        for one in elements:
            starred = one.value if isinstance(one, ast.Starred) else None
            if isinstance(starred, ast.Name) and starred.id.startswith("_gap_"):
                made += map(as_code, self.parts[starred.id.removeprefix("_gap_")])
            else:
                made.append(self.visit(one))
        return made
