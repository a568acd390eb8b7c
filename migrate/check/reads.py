"""Rate the severity of reading a value of the device, by the location of the read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import libcst as cst

from migrate.catalogue.words import KEPT_TENSORS, READS
from migrate.check.hazard import Hazard, Hit, Severity
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts
from migrate.reading.names.bindings import How
from migrate.reading.steps.evaluating import sampling_loop
from migrate.reading.steps.in_step import When
from migrate.reading.values.device_values import OF_TENSORS, has_gradients, is_left_entry
from migrate.syntax.tree import code, last_part, nodes_of

# Tests of a number that need its value.
CHECKS = frozenset(
    {"math.isfinite", "math.isnan", "math.isinf", "numpy.isnan", "numpy.isfinite", "numpy.isinf"}
)

GUARDED = "XLA305"  # a read that only some replicas run, with something pending

# Maximum number of parts, methods and names through which a value is followed.
DEEPEST = 20


def placed(hazard: Hazard, node: cst.CSTNode, what: str, facts: Facts) -> Iterator[Hit]:
    """Yield a hit for the read `what` at `node`, unless it runs once, or now and then.

    A read that only some replicas run while a collective or graph is pending is another hazard (XLA305).
    """
    when = facts.steps.when(node)
    part = part_of_turn(node, facts) if when is When.ELSEWHERE else None
    if part is not None and facts.guards.around(node) is None:
        read = cst.ensure_type(part, cst.Subscript).value
        message = (
            f"{what} of `{code(part)}` in each turn of a loop: each waits for the device, and each index is "
            f"a graph of its own; fetch `{code(read)}` once before the loop: .cpu()"
        )
        yield hazard.hit(node, message)
        return
    if _in_condition(node, facts) or _before_the_end(node, facts):
        return
    guarded = facts.guards.around(node) is not None
    if (guarded and when is not When.EVERY_STEP) or _for_another_device(node, facts):
        return
    if when is When.STEP:
        yield hazard.hit(node, f"{what} inside the step cuts its graph in two: read after the step")
    elif when is When.EVERY_STEP:
        message = f"{what} at every step: the host waits for the device; read every N steps"
        hit = hazard.hit(node, message, Severity.INFO)
        yield replace(hit, unless=GUARDED) if guarded else hit
    elif sampling_loop(node, facts) is not None:
        message = (
            f"{what} in every turn of a loop that samples from a model: the host waits, and each turn is cut "
            "in two; read what is the same in all turns once before the loop, and the rest after it"
        )
        yield hazard.hit(node, message, Severity.INFO)


def part_of_turn(node: cst.CSTNode, facts: Facts) -> cst.Subscript | None:
    """Return the part `x[i]` of a tensor of the device in `node`, where a loop around it counts with `i`."""
    for part in nodes_of(node, cst.Subscript):
        index = part.slice[0].slice
        value = index.value if isinstance(index, cst.Index) else None
        if not isinstance(value, cst.Name) or not _counts(value, node, facts):
            continue
        if facts.values.on_device(part.value) and not _is_list(part.value, facts):
            return part
    return None


def _counts(name: cst.Name, node: cst.CSTNode, facts: Facts) -> bool:
    """Whether a loop or a comprehension around `node` counts with `name`, to no number that is written."""
    for above in facts.context.ancestors(node):
        if isinstance(above, cst.FunctionDef | cst.ClassDef | cst.Lambda):
            return False
        loop = above.for_in if isinstance(above, cst.BaseComp) else above
        if not isinstance(loop, cst.For | cst.CompFor) or not isinstance(loop.iter, cst.Call):
            continue
        target: cst.BaseExpression = loop.target
        over = code(loop.iter.func)
        if over == "enumerate" and isinstance(target, cst.Tuple):
            target = target.elements[0].value
        if isinstance(target, cst.Name) and target.value == name.value:
            written = all(isinstance(arg.value, cst.Integer) for arg in loop.iter.args)
            return over in ("enumerate", "range", "trange", "tqdm.trange") and not written
    return False


def _is_list(value: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `value` is a list of tensors: each of them is computed already, and no index is a graph."""
    values = [value, *(facts.values.given_to(value) if isinstance(value, cst.Name) else ())]
    return any(isinstance(v, cst.List | cst.ListComp | cst.Tuple | cst.Dict) for v in values)


def lies_on_device(value: cst.CSTNode, facts: Facts) -> bool:
    """Whether `value` is a tensor of the device. In a step, an otherwise unknown tensor counts as one."""
    if facts.values.on_device(value):
        return True
    if is_left_entry(value, facts.context):
        return False
    return facts.values.is_tensor(value) and facts.steps.inside(value)


def reads_device(value: cst.CSTNode, facts: Facts) -> bool:
    """Whether reading `value` reads a tensor of the device.

    A step computes on the device. So an otherwise unknown tensor in a step counts as one of the device. So
    does the loss in a training loop.
    """
    if lies_on_device(value, facts):
        return True
    if facts.values.kind(value) is not Kind.UNKNOWN or not has_gradients(value, facts.context):
        return False
    when = facts.steps.when(value)
    on_accelerator = facts.context.moves_to_accelerator or facts.context.calls.run_on_accelerator
    return when is When.STEP or (when is not When.ELSEWHERE and on_accelerator)


def is_read(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether `node` is `x.item()` or `x.tolist()` of a tensor of the device.

    In a step, `.item()` of an otherwise unknown argument, or of an unknown result of another file's function,
    counts too: numbers of the host have no such method, and `cache["end"]` of a model is a tensor.
    """
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute) or node.args:
        return False
    name, value = node.func.attr.value, node.func.value
    if name not in READS:
        return False
    if reads_device(value, facts):
        return True
    return name == "item" and (_is_given(value, facts) or is_returned_elsewhere(value, facts))


def is_returned_elsewhere(value: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `value`, in a step, is the result of another file's function, and nothing else is known of it.

    `loss = super().training_step(batch)`, then `loss.detach().cpu().item()`.
    """
    if facts.steps.when(value) is not When.STEP or facts.values.kind(value) is not Kind.UNKNOWN:
        return False
    origin: cst.CSTNode | None = value
    while isinstance(origin, cst.Call) and last_part(origin.func) in OF_TENSORS:
        origin = origin.func.value if isinstance(origin.func, cst.Attribute) else None
    if isinstance(origin, cst.Name):
        binding = facts.bindings.nearest(origin)
        origin = binding.value if binding is not None else None
    if not isinstance(origin, cst.Call):
        return False
    ran = facts.context.run_by(origin)
    return any(definition.returns and definition.path != facts.context.file for definition in ran)


def _is_given(value: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `value` is made of an argument of a function in a step, and nothing else is known of it.

    A part of the argument (`cache["end"]`) and the result of a tensor method (`x.max()`) are made of it. A
    lambda that is passed to a call, as in `apply(losses, lambda x: x.item())`, is such a function too, also
    between the steps.
    """
    when = facts.steps.when(value)
    root = _made_of(value, facts)
    if facts.values.kind(value) is not Kind.UNKNOWN or not isinstance(root, cst.Name):
        return False
    if root.value in ("self", "cls"):
        return False
    parameter = facts.bindings.parameter(root) if when is When.STEP else None
    if parameter is not None:
        return not _is_of_host(root, facts)
    scopes = [binding.scope.node for binding in facts.context.bindings(root)]
    handed = any(
        isinstance(scope, cst.Lambda) and isinstance(facts.context.parent(scope), cst.Arg)
        for scope in scopes
    )
    return handed and when in (When.STEP, When.EVERY_STEP)


def _made_of(value: cst.BaseExpression, facts: Facts) -> cst.BaseExpression:
    """Return the origin of `value` through parts, tensor methods and names: `x` for `cx, cy = x[0], x[1]`."""
    root = value
    for _ in range(DEEPEST):
        if isinstance(root, cst.Attribute) and root.attr.value in KEPT_TENSORS:
            break  # `ctx` holds tensors that the forward pass saved; their kind is known
        if isinstance(root, cst.Subscript | cst.Attribute):
            root = root.value
        elif isinstance(root, cst.Call):
            func = root.func
            if not isinstance(func, cst.Attribute) or func.attr.value not in OF_TENSORS:
                break
            if facts.context.run_by(root) or facts.names.of(func) is not None:
                break
            root = func.value
        elif (
            isinstance(root, cst.Name) and (assignment := facts.bindings.nearest(root)) is not None
        ):
            if assignment.value is None or assignment.how not in (How.VALUE, How.PART):
                break
            root = assignment.value
        else:
            break
    return root


def _is_of_host(value: cst.BaseExpression, facts: Facts, depth: int = 4) -> bool:
    """Whether `value` follows from parameters to which all known calls pass values of the host."""
    if facts.values.kind(value) is Kind.HOST:
        return True
    if isinstance(value, cst.Comparison):
        compared = (value.left, *(comparison.comparator for comparison in value.comparisons))
        return all(_is_of_host(operand, facts, depth) for operand in compared)
    root = _made_of(value, facts)
    while isinstance(root, cst.Call) and isinstance(root.func, cst.Attribute):
        root = _made_of(root.func.value, facts)
    if root is not value and not isinstance(root, cst.Name):
        return depth > 0 and _is_of_host(root, facts, depth - 1)
    parameter = facts.bindings.parameter(root) if isinstance(root, cst.Name) else None
    if parameter is None:
        return False
    function, name = parameter[0], parameter[1].name.value
    if facts.values.is_handed_host(function, name):
        return True
    passed = list(facts.bindings.passed(function, name))
    return (
        depth > 0
        and bool(passed)
        and all(_is_of_host(operand, facts, depth - 1) for operand in passed)
    )


def _for_another_device(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether only a run on a Mac's GPU reaches the code: `if mps:`."""
    tests = (above.test for above in facts.context.ancestors(node) if isinstance(above, cst.If))
    return any(isinstance(test, cst.Name) and test.value in ("mps", "is_mps") for test in tests)


def _in_condition(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether the read is compared in a condition: XLA110 reports that."""
    compared = False
    below = node
    for above in facts.context.ancestors(node):
        if isinstance(above, cst.Assert):
            return True
        if isinstance(above, cst.If | cst.While | cst.IfExp):
            return below is above.test and (compared or below is node)
        if isinstance(above, cst.BaseStatement):
            return False
        checks = isinstance(above, cst.Call) and facts.names.of(above.func) in CHECKS
        compared = compared or checks or isinstance(above, cst.Comparison)
        below = above
    return False


def _before_the_end(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether the program or the loop ends in the branch of the read, so that the read runs once."""
    for above in facts.context.ancestors(node):
        if isinstance(above, cst.FunctionDef):
            return False
        if isinstance(above, cst.If) and isinstance(above.body, cst.IndentedBlock):
            last = above.body.body[-1]
            if isinstance(last, cst.SimpleStatementLine) and _leaves(last.body[-1]):
                return True
    return False


def _leaves(statement: cst.CSTNode) -> bool:
    if isinstance(statement, cst.Raise | cst.Break):
        return True
    call = statement.value if isinstance(statement, cst.Expr) else None
    return isinstance(call, cst.Call) and code(call.func) in (
        "sys.exit",
        "exit",
        "os._exit",
        "quit",
    )
