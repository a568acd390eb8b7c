"""Work of some replicas only, between steps: a function that computes and reads, or an evaluation."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from migrate.check.common import method
from migrate.check.rules.ranks.parting import GraphDifference
from migrate.check.rules.ranks.parting.read_at import reads_at
from migrate.check.rules.ranks.parting.unrun import computes, start_of_statement
from migrate.model.calls.kind import Kind
from migrate.reading.collectives.pending import further_parameters, parameters
from migrate.reading.facts import Facts
from migrate.reading.names.dead_branches import never_runs
from migrate.reading.steps.in_step import is_step
from migrate.syntax.origins import at_line
from migrate.syntax.tree import nodes_of


def evaluations(call: cst.Call, facts: Facts) -> Iterator[GraphDifference]:
    """Yield a call, on some replicas only, of a function that computes and reads."""
    guard = facts.guards.around(call)
    if guard is not None and (evaluates(call, facts) or _is_step_of_some(call, facts)):
        line = facts.context.position(guard).line
        message = (
            f"computes and reads in some replicas only ({at_line(line)}): the replicas run different graphs "
            "before the next collective; run it on all replicas, print on one"
        )
        yield GraphDifference(call, message)


def evaluates(call: cst.Call, facts: Facts) -> bool:
    """Whether `call`, between steps, runs a function that computes on the device and reads the result."""
    if not facts.steps.between(call):
        return False
    functions = facts.context.called(call)
    if not functions:  # of another file
        arguments = (arg.value for arg in call.args)
        return facts.context.effects.reads(call) and any(
            facts.values.kind(argument) is Kind.MODEL for argument in arguments
        )
    return any(_reads_its_own(function, facts) for function in functions[:3])


def _is_step_of_some(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` begins a step, `with torch_xla.step():`, of an evaluation between training steps."""
    block = facts.context.parent(facts.context.parent(call))
    if not isinstance(block, cst.With) or not is_step(block, facts.context):
        return False
    loop = next(
        (a for a in facts.context.ancestors(block) if isinstance(a, cst.For | cst.While)), None
    )
    if loop is None or facts.context.effects.of(block.body):
        return False
    return facts.steps.between(loop)


def _reads_its_own(function: cst.FunctionDef, facts: Facts) -> bool:
    """Whether `function` reads a value that it has computed on the device."""
    for node in facts.below(function.body, cst.Call):
        guard = facts.guards.around(node)
        if guard is not None and facts.context.function_around(guard) is function:
            continue
        if never_runs(node, facts.context) is not None:
            continue
        reads = [*reads_at(node, facts)]
        if not reads and _reads_arguments(node, facts):  # `accuracy(model(x), y)`
            reads = [arg.value for arg in node.args]
        for read in reads:
            if _is_there(read, node, facts) and is_made_in(function, read, facts):
                return True
    return False


def _reads_arguments(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` runs a function that reads what it is given."""
    functions = facts.context.called(call)
    if not functions:  # of another file
        return facts.context.effects.reads(call)
    for function in functions[:3]:
        arguments = {*parameters(function), *further_parameters(function)}
        for node in facts.below(function.body, cst.Call):
            if any(
                name.value in arguments
                for read in reads_at(node, facts)
                for name in nodes_of(read, cst.Name)
            ):
                return True
    return False


def _is_there(read: cst.BaseExpression, node: cst.CSTNode, facts: Facts) -> bool:
    """Whether the value read at `node` is on the device. An unknown value counts if the read fetches it."""
    kind = facts.values.kind(read)
    return kind is Kind.ON_DEVICE or (kind is Kind.UNKNOWN and method(node) == "cpu")


def is_made_in(block: cst.CSTNode, read: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `block` computes the value that it reads, in the read itself or in an earlier statement."""
    if computes(read):
        return True
    inner = read
    while isinstance(inner, cst.Subscript):
        inner = inner.value
    assignments = facts.bindings.given(inner) if isinstance(inner, cst.Name) else ()
    return any(
        assignment.value is not None
        and computes(assignment.value)
        and any(above is block for above in facts.context.ancestors(assignment.value))
        and _runs_before(assignment.value, read, block, facts)
        for assignment in assignments
    )


def _runs_before(
    value: cst.BaseExpression, read: cst.BaseExpression, block: cst.CSTNode, facts: Facts
) -> bool:
    """Whether `block` may compute `value` before `read`: above it, or in an earlier turn of a loop.

    `mean = mean.item()` reads what was there before.
    """
    context = facts.context
    if start_of_statement(value, facts) < start_of_statement(read, facts):
        return True
    around = {id(above) for above in context.ancestors(value)}
    for above in context.ancestors(read):
        if above is block:
            return False
        if isinstance(above, cst.For | cst.While) and id(above) in around:
            return True
    return False
