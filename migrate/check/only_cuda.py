"""Find code that runs only if there is a CUDA device."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from migrate.reading.facts import Facts
from migrate.reading.values.devices import names_cuda
from migrate.syntax.tree import code, nodes, nodes_of, string_value

# Calls that move values and models to a device. A branch for CUDA with such a call is needed on a TPU too.
PLACES = frozenset(
    {"to", "cuda", "autocast", "init_process_group", "set_device", "device", "compile"}
)

# Attributes that tell whether a tensor is on another kind of device than a TPU.
OTHER_DEVICES = frozenset({"is_cuda", "is_mps", "is_xpu"})

# Flags of features that only CUDA has: faster kernels, pinned memory.
FASTER = re.compile(r"fused|flash|pin_mem|pinned|cudnn|non_blocking", re.IGNORECASE)


def only_with_cuda(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether `node` runs only if `torch.cuda.is_available()`, or for a tensor or device of CUDA."""
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


def goes_well(asked: cst.CSTNode, facts: Facts) -> bool:
    """Whether a test for CUDA, which is False on XLA, leads to a branch that works on XLA.

    That holds if only calls of torch.cuda, printed text or a faster way to compute the same depend on the
    test. It does not hold if only the branch for CUDA moves or wraps something, or if the other one raises.
    """
    negated = is_negated(asked)
    below = asked
    for above in facts.context.ancestors(asked):
        if isinstance(above, cst.If | cst.IfExp) and below is above.test:
            return guards_cuda_only(asked, facts) or _same_work(above, negated, facts)
        if _chooses_a_kernel(above):
            return True
        if not _hands_on(above):
            return guards_cuda_only(asked, facts)
        if isinstance(above, cst.UnaryOperation) and isinstance(above.operator, cst.Not):
            negated = not negated
        below = above
    return False


def _chooses_a_kernel(node: cst.CSTNode) -> bool:
    """Whether `node` stores or passes on a result that only decides how fast CUDA computes."""
    kept: cst.CSTNode | None = None
    if isinstance(node, cst.Assign):
        kept = node.targets[0].target
    elif isinstance(node, cst.Arg):
        kept = node.keyword
    elif isinstance(node, cst.DictElement):
        kept = node.key
    return kept is not None and FASTER.search(code(kept)) is not None


def _hands_on(node: cst.CSTNode) -> bool:
    """Whether the value of `node` follows from the result of a test in it: `not`, `and`, `any(...)`."""
    if isinstance(node, cst.Call):
        return code(node.func) in ("any", "all", "torch.cuda.is_available")
    return isinstance(node, cst.BooleanOperation | cst.UnaryOperation | cst.Arg | cst.GeneratorExp)


def is_negated(asked: cst.CSTNode) -> bool:
    """Whether `asked` is true where the device is not CUDA: `device.type != "cuda"`."""
    return isinstance(asked, cst.Comparison) and isinstance(
        asked.comparisons[0].operator, cst.NotEqual | cst.NotIn
    )


def _same_work(condition: cst.If | cst.IfExp, negated: bool, facts: Facts) -> bool:
    for_cuda: list[cst.CSTNode] = [condition.body]
    other: list[cst.CSTNode] = [condition.orelse] if condition.orelse is not None else []
    if not other and isinstance(condition, cst.If) and _leaves(condition.body):
        other = _after(condition, facts)  # `if device.type != "cuda": return`
    if negated:
        for_cuda, other = other, for_cuda
    if any(list(nodes_of(branch, cst.Raise)) for branch in other):
        return False
    if _chooses_cuda(for_cuda) and not _chooses_cuda(other):
        return False  # the device: in the other branch the CPU computes
    return not _places(for_cuda) or (bool(other) and _places(other))


def _leaves(body: cst.BaseSuite) -> bool:
    """Whether `body` ends with a statement that leaves the block around it."""
    last = body.body[-1] if body.body else None
    if isinstance(last, cst.SimpleStatementLine):
        last = last.body[-1]
    return isinstance(last, cst.Return | cst.Raise | cst.Continue | cst.Break)


def _after(condition: cst.If, facts: Facts) -> list[cst.CSTNode]:
    """Return the statements after `condition` in its block."""
    block = getattr(facts.context.parent(condition), "body", ())
    if condition not in block:
        return []
    return [*block[block.index(condition) + 1 :]]


def _chooses_cuda(branches: list[cst.CSTNode]) -> bool:
    """Whether the code names a CUDA device or moves something there: `"cuda:0"`, `model.cuda()`."""
    for branch in branches:
        calls = [call.func for call in nodes_of(branch, cst.Call)]
        if any(isinstance(func, cst.Attribute) and func.attr.value == "cuda" for func in calls):
            return True
        if any(names_cuda(node) for node in nodes(branch)):
            return True
    return False


def _places(branches: list[cst.CSTNode]) -> bool:
    """Whether the code moves or wraps something, or names a device. A TPU needs that too."""
    for branch in branches:
        for call in nodes_of(branch, cst.Call):
            if code(call.func) == "torch.cuda.device":
                continue  # the device of an existing tensor: `with torch.cuda.device(x.device)`
            last = call.func.attr.value if isinstance(call.func, cst.Attribute) else code(call.func)
            if last in PLACES or last.endswith(("Parallel", "DDP")):
                return True
        if any(string_value(text) == "cuda" for text in nodes_of(branch, cst.SimpleString)):
            return True
    return False


def guards_cuda_only(asked: cst.CSTNode, facts: Facts) -> bool:
    """Whether only calls of torch.cuda, or printed text, depend on the test `asked`: seeds, waits, memory."""
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
    names = (facts.names.of(call.func) or "" for call in facts.below(node, cst.Call))
    flags = (facts.names.of(attribute) or "" for attribute in facts.below(node, cst.Attribute))
    return any(name.startswith("torch.cuda.") for name in names) or any(
        name.startswith("torch.backends.cudnn.") for name in flags
    )


def _only_says(line: cst.SimpleStatementLine, facts: Facts) -> bool:
    """Whether a line only warns or prints: `warnings.warn(...)`, `print(...)`."""
    says = line.body[0].value if isinstance(line.body[0], cst.Expr) else None
    if not isinstance(says, cst.Call):
        return False
    return facts.names.of(says.func) == "warnings.warn" or code(says.func) == "print"


def _needed(test: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield the parts of `test` that must all be true."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        yield from _needed(test.left)
        yield from _needed(test.right)
    else:
        yield test


def _asks(test: cst.BaseExpression, facts: Facts) -> bool:
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.Or):
        return _asks(test.left, facts) and _asks(test.right, facts)
    if isinstance(test, cst.Call):
        return facts.names.of(test.func) == "torch.cuda.is_available"
    if isinstance(test, cst.Name):
        _, value = facts.context.bound_to(test)
        return isinstance(value, cst.BaseExpression) and _asks(value, facts)
    if isinstance(test, cst.Attribute):
        return test.attr.value in OTHER_DEVICES
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        if isinstance(test.left, cst.Call) and code(test.left.func).endswith("device_count"):
            name = facts.names.of(test.left.func)
            return name == "torch.cuda.device_count" and code(test).endswith(("> 0", "> 1"))
        asked = test.comparisons[0]
        equal = isinstance(asked.operator, cst.Equal)
        text = string_value(asked.comparator) or ""
        return equal and (text == "cuda" or text.startswith("torch.cuda."))
    return False
