"""Numbers of an initialization, as the settings of the port give them."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from typing import Any

from converters.graph.expression import SettingFloat
from converters.graph.starts.law import Leaf, Number

Setting = tuple[str, Mapping[str, Any]]


class InitialNumbers:
    """Numbers of an initialization in the source of a port.

    Args:
        setting: returns the settings of the port that an attribute or argument of the original stands for, as
            an expression and its parts; None if no setting gives it.
        baked: numbers that no setting gives, for the report.
    """

    def __init__(self, setting: Callable[[Leaf], Setting | None], baked: dict[str, None]) -> None:
        self._setting, self._baked = setting, baked

    def number(self, number: Number, local: str) -> Any:
        """A number as the original's settings give it; else itself."""
        value = number.value
        if number.origin is not None:
            parts: dict[str, Any] = {}
            tree = _NamedOrigin(self._setting, parts).visit(copied_tree(number.origin))
            text = None if tree is None else ast.unparse(ast.fix_missing_locations(tree))
            if text is not None and parts and _agrees(text, parts, value):
                return SettingFloat(value, text, parts, local)
            if text is not None and not parts and _agrees(text, {}, value):
                return value
        if not number.literal:
            said = f"{value:g}: the {local} of an initializer, which no setting gives"
            self._baked[said] = None
        return SettingFloat(value, local=local)


class _NamedOrigin(ast.NodeTransformer):
    """An origin with the names of settings for its leaves."""

    def __init__(self, setting: Callable[[Leaf], Setting | None], parts: dict[str, Any]) -> None:
        self._setting, self.parts = setting, parts
        self.failed = False

    def visit(self, node: ast.AST) -> Any:
        if not isinstance(node, Leaf):
            renamed = super().generic_visit(node)
            return None if self.failed else renamed
        setting = self._setting(node)
        if setting is None and node.inner is not None and node.inner.origin is not None:
            return self.visit(copied_tree(node.inner.origin))
        if setting is None and node.inner is not None and node.inner.literal:
            return ast.Constant(node.inner.value)
        if setting is None:
            self.failed = True
            return None
        text, parts = setting
        self.parts |= parts
        return ast.parse(text, mode="eval").body


def copied_tree(tree: Any) -> Any:
    """A copy of a tree; leaves and holes stay the same objects."""
    if isinstance(tree, Leaf) or (isinstance(tree, ast.AST) and not tree._fields):
        return tree
    if isinstance(tree, ast.AST):
        result = type(tree).__new__(type(tree))
        ast.AST.__init__(
            result, **{name: copied_tree(getattr(tree, name, None)) for name in tree._fields}
        )
        return result
    return [copied_tree(element) for element in tree] if isinstance(tree, list) else tree


def _agrees(text: str, parts: Mapping[str, Any], value: float) -> bool:
    """Whether an expression of settings has a value."""
    try:
        result = eval(
            compile(text, "", "eval"),
            {"__builtins__": {}, "math": math, "int": int, "max": max, "min": min, "float": float},
            dict(parts),
        )
    except (ArithmeticError, ValueError, TypeError, NameError):
        return False
    return isinstance(result, int | float) and math.isclose(result, value, rel_tol=1e-6)
