"""Which code runs only where there is a CUDA device."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from migrate.hazards.facts import Facts
from migrate.rewrite.tree import code, nodes_of, string_value


def only_with_cuda(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether `node` runs only where `torch.cuda.is_available()`, or on a tensor or device of CUDA."""
    below = node
    for above in facts.context.ancestors(node):
        if isinstance(above, cst.If | cst.IfExp) and below is above.body:
            if any(_asks(part, facts) for part in _needed(above.test)):
                return True
        elif isinstance(above, cst.BooleanOperation) and below is above.right:
            if isinstance(above.operator, cst.And) and _asks(above.left, facts):
                return True
        elif isinstance(above, cst.FunctionDef):
            return False
        below = above
    return False


def guards_cuda_only(asked: cst.CSTNode, facts: Facts) -> bool:
    """Whether only calls of torch.cuda, or words, depend on the question `asked`: seeds, waits, memory."""
    below = asked
    for above in facts.context.ancestors(asked):
        if isinstance(above, cst.If):
            return below is above.test and above.orelse is None and _all_cuda(above.body, facts)
        if isinstance(above, cst.IfExp):
            return below is above.test and _mentions(above.body, facts)
        if not isinstance(above, cst.Call | cst.BooleanOperation):
            return False
        below = above
    return False


def _all_cuda(body: cst.BaseSuite, facts: Facts) -> bool:
    return all(
        isinstance(statement, cst.SimpleStatementLine)
        and (_mentions(statement, facts) or _only_says(statement, facts))
        for statement in body.body
    )


def _mentions(node: cst.CSTNode, facts: Facts) -> bool:
    names = (facts.names.of(call.func) or "" for call in nodes_of(node, cst.Call))
    flags = (facts.names.of(one) or "" for one in nodes_of(node, cst.Attribute))
    return any(name.startswith("torch.cuda.") for name in names) or any(
        name.startswith("torch.backends.cudnn.") for name in flags
    )


def _only_says(line: cst.SimpleStatementLine, facts: Facts) -> bool:
    """Whether a line only warns: `warnings.warn(...)`, `print(...)`."""
    says = line.body[0].value if isinstance(line.body[0], cst.Expr) else None
    if not isinstance(says, cst.Call):
        return False
    return facts.names.of(says.func) == "warnings.warn" or code(says.func) == "print"


def _needed(test: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield the parts of `test` that must all hold."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        yield from _needed(test.left)
        yield from _needed(test.right)
    else:
        yield test


def _asks(test: cst.BaseExpression, facts: Facts) -> bool:
    if isinstance(test, cst.Call):
        return facts.names.of(test.func) == "torch.cuda.is_available"
    if isinstance(test, cst.Name):
        _, value = facts.context.bound_to(test)
        return isinstance(value, cst.BaseExpression) and _asks(value, facts)
    if isinstance(test, cst.Attribute):
        return test.attr.value == "is_cuda"
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        asked = test.comparisons[0]
        equal = isinstance(asked.operator, cst.Equal)
        return equal and string_value(asked.comparator) == "cuda"
    return False
