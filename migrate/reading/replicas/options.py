"""Values that follow from options and counters alone: they are the same on all replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import GROUP_RANK_NAME, METRIC
from migrate.model.pure import leaves, same_everywhere
from migrate.reading.names.bindings import passed_for
from migrate.reading.names.scopes import NameBinding
from migrate.syntax.tree import code, last_part, nodes, nodes_of

if TYPE_CHECKING:
    from migrate.reading.script import Script

PLAIN = frozenset({"bool", "hasattr", "int", "isinstance", "len", "max", "min", "round"})
RANGES = frozenset({"range", "trange", "tqdm.trange"})
# Containers; values put into them later are not followed.
HOLDING = cst.Dict | cst.List | cst.Set | cst.BaseComp | cst.Subscript | cst.Lambda
DEEPEST = 6


def same_on_all(test: cst.BaseExpression, context: Script) -> bool:
    """Whether `test` has the same result on all replicas, as far as is known.

    It asks for counters and options, or for values computed from them: each name is bound to numbers, counted
    by a loop, or computed from such names. A parameter counts if its default is a number, if it is annotated
    as `int`, or if all calls pass a value that counts. An attribute counts if all its values in the script
    do.
    """
    return same_everywhere(test) or _Followed(context).plain(test)


class _Followed:
    """Origins of the names in one test."""

    def __init__(self, context: Script) -> None:
        self._context = context
        self._under_way: set[str] = set()

    def plain(self, value: cst.BaseExpression | None) -> bool:
        """Whether `value` is computed from values equal on all replicas, by calls that only compute."""
        if value is None or any(isinstance(node, HOLDING) for node in nodes(value)):
            return False
        if same_everywhere(value):
            return True
        if not all(code(call.func) in PLAIN for call in self._context.below(value, cst.Call)):
            return False
        return all(self._follows(name) for name in leaves(value))

    def _follows(self, name: cst.Name | cst.Attribute) -> bool:
        text = code(name)
        if text in PLAIN or text in self._under_way or same_everywhere(name):
            return True
        if _is_own(last_part(name)) or len(self._under_way) > DEEPEST:
            return False
        if self._context.guards.is_index(name) or self._context.values.is_tensor(name):
            return False
        self._under_way.add(text)
        try:
            if isinstance(name, cst.Name):
                bindings = self._context.bindings(name)
                return bool(bindings) and all(self._counts(binding, name) for binding in bindings)
            values = self._context.attributes.get(last_part(name), ())
            return bool(values) and all(self.plain(value) for _, value in values)
        finally:
            self._under_way.discard(text)

    def _counts(self, binding: NameBinding, name: cst.Name) -> bool:
        """Whether the value that `binding` gives `name` is the same on all replicas."""
        node = binding.node
        if isinstance(node, cst.Import | cst.ImportFrom):
            return True
        if isinstance(node, cst.Param):
            if isinstance(node.default, cst.Integer | cst.Float) or _is_int(node.annotation):
                return True
            passed = passed_for(name, self._context)
            return bool(passed) and all(map(self.plain, passed))
        above = self._context.parent(node)
        statement = self._context.parent(above) if isinstance(above, cst.AssignTarget) else above
        if isinstance(statement, cst.Assign | cst.AnnAssign | cst.AugAssign):
            return self.plain(statement.value) and self._is_reached_by_all(statement)
        return self._is_counted(above)

    def _is_reached_by_all(self, statement: cst.CSTNode) -> bool:
        """Whether no test around `statement` is known to differ: `if accuracy > best: improved = True`."""
        for above in self._context.ancestors(statement):
            if isinstance(above, cst.FunctionDef):
                return True
            if isinstance(above, cst.If) and self._differs(above.test, set()):
                return False
        return True

    def _differs(self, value: cst.BaseExpression, seen: set[str]) -> bool:
        """Whether `value` is known to differ per replica: computed from a metric, a tensor, the index."""
        for name in _asked(value):
            if code(name) in seen or same_everywhere(name):
                continue
            seen.add(code(name))
            context = self._context
            if _is_own(last_part(name)) or context.guards.is_index(name):
                return True
            if context.values.is_tensor(name):
                return True
            if isinstance(name, cst.Name):
                values = context.bound_values(name)
                if any(
                    self._differs(value, seen)
                    for value in values
                    if isinstance(value, cst.BaseExpression)
                ):
                    return True
        return False

    def _is_counted(self, above: cst.CSTNode | None) -> bool:
        """Whether a loop counts with the name `node`: `for i in range(…)`, `for i, x in enumerate(…)`."""
        if isinstance(above, cst.For):
            return isinstance(above.iter, cst.Call) and code(above.iter.func) in RANGES
        target = self._context.parent(above)
        loop = self._context.parent(target)
        return (
            isinstance(target, cst.Tuple)
            and isinstance(loop, cst.For)
            and target.elements[0] is above
            and isinstance(loop.iter, cst.Call)
            and code(loop.iter.func) == "enumerate"
        )


def _is_own(word: str) -> bool:
    """Whether a value named `word` differs per replica: its loss, or its number in some group."""
    return METRIC.fullmatch(word) is not None or GROUP_RANK_NAME.fullmatch(word) is not None


def _is_int(annotation: cst.Annotation | None) -> bool:
    return annotation is not None and code(annotation.annotation) == "int"


def _asked(test: cst.BaseExpression) -> list[cst.Name | cst.Attribute]:
    """Return what `test` asks for, including the receivers of its methods."""
    called = (call.func for call in nodes_of(test, cst.Call))
    receivers = [func.value for func in called if isinstance(func, cst.Attribute)]
    return [*leaves(test), *(name for receiver in receivers for name in leaves(receiver))]
