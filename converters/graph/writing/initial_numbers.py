"""Numbers of an initialization, as the settings of the port give them."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from converters.graph.expression import INDEX, SettingFloat
from converters.graph.starts.law import Leaf, Number, Turn

Setting = tuple[str, Mapping[str, Any]]


class InitialNumbers:
    """Numbers of an initialization in the source of a port.

    Args:
        setting: returns the settings of the port that an attribute or argument of the original stands for, as
            an expression and its parts; None if no setting gives it.
        baked: numbers that no setting gives, for the report.
        places: returns the lists that a tensor's layers stand in, the innermost first: the path of each, and
            the layer's place there.

    Attributes:
        key: the tensor whose numbers are asked for.
    """

    def __init__(
        self,
        setting: Callable[[Leaf], Setting | None],
        baked: dict[str, None],
        places: Callable[[str], Iterable[tuple[str, int]]] = lambda _: (),
    ) -> None:
        self._setting, self._baked, self._places = setting, baked, places
        self.key = ""

    def number(self, number: Number, local: str) -> Any:
        """A number as the original's settings give it; else itself."""
        value = number.value
        if number.origin is not None:
            parts: dict[str, Any] = {}
            origin, holder, place = self._in_list(number.origin)
            tree = _NamedOrigin(self._setting, parts).visit(copied_tree(origin))
            text = None if tree is None else ast.unparse(ast.fix_missing_locations(tree))
            if text is not None and holder and _agrees(text, {**parts, INDEX: place}, value):
                number_in_list = SettingFloat(value, text, parts, local, holder)
                number_in_list.place = place
                return number_in_list
            if text is not None and parts and _agrees(text, parts, value):
                return SettingFloat(value, text, parts, local)
            if text is not None and not parts and _agrees(text, {}, value):
                return value
        if not number.literal:
            said = f"{value:g}: the {local} of an initializer, which no setting gives"
            self._baked[said] = None
        return SettingFloat(value, local=local)

    def _in_list(self, origin: ast.expr) -> tuple[ast.expr, str, int]:
        """An origin with the tensor's place in a list for the turn of a loop; the list's path, and the place.

        The path is "" if there is no turn in it, or no list whose layers were counted by such turns.
        """
        turned = _AtPlaces()
        turned.visit(_opened(origin))
        for holder, place in self._places(self.key) if len(turned.numbers) == 1 else ():
            (counted,) = turned.numbers
            if counted - place in (0, 1):
                step = _AtPlaces(counted - place)
                return step.visit(_opened(origin)), holder, place
        return origin, "", 0


class _AtPlaces(ast.NodeTransformer):
    """Turns of loops as places in a list: `i`, or `i + 1`.

    Attributes:
        numbers: the numbers of the turns.
    """

    def __init__(self, step: int = 0) -> None:
        self._step = step
        self.numbers: set[int] = set()

    def visit(self, node: ast.AST) -> Any:
        if not isinstance(node, Turn):
            return super().generic_visit(node)
        self.numbers.add(node.number)
        place = ast.Name(INDEX, ast.Load())
        return ast.BinOp(place, ast.Add(), ast.Constant(self._step)) if self._step else place


def _opened(origin: ast.expr) -> Any:
    """A copy of an origin in which arguments that follow from the turn of a loop are what was passed."""
    return _Opened().visit(copied_tree(origin))


class _Opened(ast.NodeTransformer):
    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, Leaf) and node.inner is not None and node.inner.origin is not None:
            opened = self.visit(copied_tree(node.inner.origin))
            return opened if any(isinstance(each, Turn) for each in ast.walk(opened)) else node
        return super().generic_visit(node)


class _NamedOrigin(ast.NodeTransformer):
    """An origin with the names of settings for its leaves."""

    def __init__(self, setting: Callable[[Leaf], Setting | None], parts: dict[str, Any]) -> None:
        self._setting, self.parts = setting, parts
        self.failed = False

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, Turn):  # of a loop over something else
            self.failed = True
            return None
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
    if isinstance(tree, Leaf | Turn) or (isinstance(tree, ast.AST) and not tree._fields):
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
