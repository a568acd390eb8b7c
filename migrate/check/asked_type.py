"""Whether a test around a value excludes tensors: `x if torch.is_tensor(x) else float(x)`."""

from __future__ import annotations

import libcst as cst

from migrate.reading.facts import Facts
from migrate.syntax.tree import code

PLAIN = frozenset({"bool", "float", "int", "str"})
LEAVING = (cst.Return, cst.Continue, cst.Break, cst.Raise)


def is_no_tensor(value: cst.CSTNode, facts: Facts) -> bool:
    """Whether the variable `value` is used where it cannot be a tensor."""
    if not isinstance(value, cst.Name):
        return False
    below: cst.CSTNode = value
    for above in facts.context.ancestors(value):
        if isinstance(above, cst.If | cst.IfExp) and below is not above.test:
            says = _says_tensor(above.test, value, facts)
            in_body = below is above.body
            if says is not None and says is not in_body and _is_same(value, above, facts):
                return True
        elif isinstance(above, cst.BooleanOperation) and below is above.right:
            says = _says_tensor(above.left, value, facts)
            if says is not None and says is isinstance(above.operator, cst.Or):
                return True
        elif isinstance(above, cst.IndentedBlock) and isinstance(below, cst.BaseStatement):
            for earlier in above.body[: above.body.index(below)]:
                if _leaves_with(earlier, value, facts) and _is_same(value, earlier, facts):
                    return True
        elif isinstance(above, cst.FunctionDef | cst.Lambda):
            return False
        below = above
    return False


def _leaves_with(statement: cst.CSTNode, name: cst.Name, facts: Facts) -> bool:
    """Whether `statement` is `if torch.is_tensor(x): return …`."""
    if not isinstance(statement, cst.If) or statement.orelse is not None:
        return False
    last = statement.body.body[-1]
    small = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
    return isinstance(small, LEAVING) and _says_tensor(statement.test, name, facts) is True


def _says_tensor(test: cst.BaseExpression, name: cst.Name, facts: Facts) -> bool | None:
    """Return whether `name` may be a tensor if `test` holds, and only then.

    Return None if `test` shows neither.
    """
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        inner = _says_tensor(test.expression, name, facts)
        return None if inner is None else not inner
    if not isinstance(test, cst.Call) or not test.args or code(test.args[0].value) != name.value:
        return None
    if facts.names.of(test.func) == "torch.is_tensor":
        return True
    if code(test.func) != "isinstance" or len(test.args) < 2:
        return None
    asked = test.args[1].value
    kinds = [e.value for e in asked.elements] if isinstance(asked, cst.Tuple) else [asked]
    if any(facts.names.of(kind) == "torch.Tensor" for kind in kinds):
        return True
    return False if all(code(kind) in PLAIN for kind in kinds) else None


def _is_same(name: cst.Name, test: cst.CSTNode, facts: Facts) -> bool:
    """Whether the variable keeps its value between `test` and `name`."""
    first, last = facts.context.position(test), facts.context.position(name)
    places = [facts.context.position(binding.node) for binding in facts.context.bindings(name)]
    start, end = (first.line, first.column), (last.line, last.column)
    if isinstance(test, cst.IfExp):
        return True
    statement = facts.context.position(facts.context.statement_around(name))
    end = (statement.line, statement.column)
    return not any(start < (place.line, place.column) < end for place in places)
