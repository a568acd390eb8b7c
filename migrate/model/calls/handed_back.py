"""Parameters whose tensor a function returns, or computes its result from: `return x - x.mean()`."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from migrate.catalogue.words import BOOLEAN_METHODS, DESCRIBES, ENDING_METHODS, SAME_VALUES
from migrate.model.calls.kinds import External
from migrate.model.calls.rank_tests import last_part
from migrate.model.calls.scopes import Function
from migrate.syntax.walk_ast import walk

if TYPE_CHECKING:
    from migrate.model.calls.values import Evaluator

HandedBack = frozenset[str | int]

DEEPEST = 4  # assignments followed from a returned name


def parameters_handed_back(function: Function, evaluator: Evaluator) -> HandedBack:
    """Return the parameters that every result of `function` is, or is computed from by arithmetic.

    Each parameter is listed by its name and by its argument index (without `self`). What reads a value on
    the way, as `x.cpu()` or `float(x)`, hands back no tensor.
    """
    if not function.returns:
        return frozenset()
    assigned = _assigned(function)
    names = function.parameters
    names = names[1:] if names[:1] in (["self"], ["cls"]) else names
    parameters = {*names, *function.all_parameters[len(function.parameters) :]}
    origins = _Origins(function, evaluator, assigned, parameters)
    sources = [origins.of(value, frozenset()) for value in function.returns]
    if not all(sources):
        return frozenset()
    common = set.intersection(*sources)
    return frozenset(common | {index for index, name in enumerate(names) if name in common})


def masks_handed_back(function: Function) -> frozenset[int]:
    """Return the positions of the masks in the tuples that `function` returns: `return x, x > 0`."""
    tuples = [value for value in function.returns if isinstance(value, ast.Tuple)]
    if not tuples:
        return frozenset()
    assigned = _assigned(function)
    return frozenset(
        position
        for value in tuples
        for position, element in enumerate(value.elts)
        if _is_mask(element, assigned, 0)
    )


def sizes_handed_back(function: Function) -> frozenset[int]:
    """Return the positions of sizes in the tuples that `function` returns: `return x, x.shape[1]`."""
    tuples = [value for value in function.returns if isinstance(value, ast.Tuple)]
    if not tuples or len(tuples) < len(function.returns):
        return frozenset()
    assigned = _assigned(function)
    names = set(function.all_parameters)
    positions = [
        {at for at, element in enumerate(value.elts) if _is_size(element, assigned, names, 0)}
        for value in tuples
    ]
    return frozenset(set.intersection(*positions))


def _is_size(
    value: ast.expr, assigned: Mapping[str, list[ast.expr]], parameters: Set[str], depth: int
) -> bool:
    """Whether `value` is a number of the host: a size of a tensor, or computed from sizes and constants."""
    match value:
        case ast.Constant(value=int()):
            return True
        case ast.Subscript(value=ast.Attribute(attr="shape")):
            return True
        case ast.Call(func=ast.Attribute(attr="size" | "dim" | "numel" | "ndimension")):
            return True
        case ast.Call(func=ast.Name(id="len")):
            return True
        case ast.BinOp(left=left, right=right):
            sides = (left, right)
            return all(_is_size(side, assigned, parameters, depth) for side in sides)
        case ast.Name(id=name) if depth < DEEPEST and name not in parameters:
            sources = assigned.get(name, [])
            return bool(sources) and all(
                _is_size(source, assigned, parameters, depth + 1) for source in sources
            )
    return False


def _is_mask(value: ast.expr, assigned: Mapping[str, list[ast.expr]], depth: int) -> bool:
    """Whether `value` compares, or joins comparisons bitwise: what decides which elements are taken."""
    match value:
        case ast.Compare(ops=ops):
            return not any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in ops)
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            return _is_mask(operand, assigned, depth)
        case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr(), right=right):
            return _is_mask(left, assigned, depth) or _is_mask(right, assigned, depth)
        case ast.Call(func=ast.Attribute(value=of, attr=name)):
            return name in BOOLEAN_METHODS or (
                name in SAME_VALUES and _is_mask(of, assigned, depth)
            )
        case ast.Name(id=name) if depth < DEEPEST:
            return any(_is_mask(source, assigned, depth + 1) for source in assigned.get(name, ()))
    return False


def _assigned(function: Function) -> dict[str, list[ast.expr]]:
    values: dict[str, list[ast.expr]] = defaultdict(list)
    for definition in function.definitions:
        for node in walk(definition):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        values[target.id].append(node.value)
                    elif isinstance(target, ast.Tuple):
                        for part, value in _parts(target, node.value):
                            values[part.id].append(value)
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                values[node.target.id].append(ast.BinOp(node.target, node.op, node.value))
    return values


def _parts(target: ast.Tuple, value: ast.expr) -> Iterator[tuple[ast.Name, ast.expr]]:
    """Yield the names in `a, b = x, y` with their values; in `a, b = x.shape` each is one of the sizes."""
    values: list[ast.expr] = []
    match value:
        case ast.Tuple(elts=elements) if len(elements) == len(target.elts):
            values = elements
        case ast.Attribute(attr="shape"):
            values = [ast.Subscript(value, ast.Constant(0)) for _ in target.elts]
        case ast.Call(func=ast.Attribute(attr="size"), args=[]):
            values = [value for _ in target.elts]
    for name, part in zip(target.elts, values, strict=False):
        if isinstance(name, ast.Name) and not isinstance(part, ast.Starred):
            yield name, part


@dataclass(frozen=True)
class _Origins:
    """Parameters that the values of a function are computed from.

    Args:
        function: the function.
        evaluator: what its names stand for.
        assigned: the values of its variables, by name.
        parameters: the names of its parameters.
    """

    function: Function
    evaluator: Evaluator
    assigned: dict[str, list[ast.expr]]
    parameters: set[str]

    def of(self, value: ast.expr, seen: frozenset[str]) -> set[str]:
        """Return the parameters that `value` is computed from in each case; empty if one may be read."""
        match value:
            case ast.Name(id=name):
                return self._name(name, seen)
            case ast.BinOp(left=left, right=right):
                return self.of(left, seen) | self.of(right, seen)
            case ast.UnaryOp(operand=operand):
                return self.of(operand, seen)
            case ast.IfExp(body=body, orelse=orelse):
                return self.of(body, seen) & self.of(orelse, seen)
            case ast.Call(func=ast.Name() | ast.Attribute() as func, args=args):
                last = last_part(func)
                if last in ENDING_METHODS or last in DESCRIBES:
                    return set()
                if self._is_of_torch(func):
                    taken = {name for arg in args for name in self.of(arg, seen)}
                    if taken or not isinstance(func, ast.Attribute):
                        return taken
                return self.of(func.value, seen) if isinstance(func, ast.Attribute) else set()
        return set()

    def _name(self, name: str, seen: frozenset[str]) -> set[str]:
        if name in seen:
            return {name} & self.parameters
        within = seen | {name}
        sources = [self.of(value, within) for value in self.assigned.get(name, ())]
        if name in self.parameters:
            return {name} if all(name in names for names in sources) else set()
        return set.intersection(*sources) if sources else set()

    def _is_of_torch(self, func: ast.expr) -> bool:
        """Whether a function is one of torch, however it is imported."""
        values = self.evaluator.values(func, self.function)
        return bool(values) and all(
            isinstance(value, External) and value.name.startswith("torch.") for value in values
        )
