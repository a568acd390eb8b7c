"""Reads on some replicas only: in the step, of values that all compute after it, or of own values."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from migrate.catalogue.words import SYNCS
from migrate.check.rules.ranks.parting import GraphDifference
from migrate.check.rules.ranks.parting.beside import ends_beside
from migrate.check.rules.ranks.parting.evaluations import is_made_in
from migrate.check.rules.ranks.parting.read_at import reads_at
from migrate.check.rules.ranks.parting.unrun import computed_after, kept_from
from migrate.reading.collectives.pending import parameters
from migrate.reading.facts import Facts
from migrate.reading.names.dead_branches import never_runs
from migrate.reading.replicas.guards import Guard
from migrate.syntax.origins import at_line
from migrate.syntax.tree import nodes_of

# Calls that run pending operations, on all replicas that make them.
ENDS_GRAPHS = SYNCS | {"torch.distributed.reduce"}


def reads(node: cst.CSTNode, guard: Guard, facts: Facts) -> Iterator[GraphDifference]:
    """Yield the first read at `node`, below `guard`, that makes the graphs differ."""
    for read in reads_at(node, facts):
        parting = _reads(read, node, guard, facts) if facts.values.on_device(read) else None
        if parting is not None:
            yield parting
            return  # once for each location


def _reads(
    read: cst.BaseExpression, node: cst.CSTNode, guard: Guard, facts: Facts
) -> GraphDifference | None:
    """Return the message for the read of `read` at `node`, below `guard`."""
    line = facts.context.position(guard).line
    if facts.steps.inside(node):
        if _nothing_is_pending(guard, facts):
            return None
        message = (
            f"read in some replicas only ({at_line(line)}), inside the step: the replicas run different "
            "graphs, and all hang"
        )
        return GraphDifference(node, message)
    if (origin := computed_after(read, node, facts)) is not None:
        return _pending(node, origin, guard, facts)
    parts = is_made_in(guard, read, facts) and facts.steps.between(node)
    if parts and not _nothing_is_pending(guard, facts):
        message = (
            f"computed and read in some replicas only ({at_line(line)}): the replicas run different graphs "
            "before the next collective; compute and read on all replicas, print on one"
        )
        return GraphDifference(node, message)
    return None


def _nothing_is_pending(guard: Guard, facts: Facts) -> bool:
    """Whether the statement above `guard` runs the pending operations on all replicas.

    The first replica then computes and reads in a separate program without a collective. `dist.reduce` ends
    the graph; `dist.all_reduce` does not.
    """
    above, _ = ends_beside(guard, ENDS_GRAPHS, facts)
    if above is None or facts.guards.around(above) is not None:
        return False
    return not any(facts.values.calls_model(call) for call in facts.below(guard, cst.Call))


def handed_on(call: cst.Call, facts: Facts) -> Iterator[GraphDifference]:
    """Yield the call of a function of the script that reads a pending argument on some replicas only."""
    functions = facts.context.called(call)
    for index, arg in enumerate(call.args) if functions and kept_from(call, facts) is None else ():
        if arg.star or not isinstance(arg.value, cst.Name):
            continue
        origin = computed_after(arg.value, call, facts)
        if origin is None:
            continue
        guards = (
            _reads_parameter(function, index, arg.keyword, facts) for function in functions[:3]
        )
        guard = next((reader for reader in guards if reader is not None), None)
        if guard is not None:
            yield _pending(call, origin, guard, facts)
            return


def in_called(call: cst.Call, facts: Facts) -> Iterator[GraphDifference]:
    """Yield the call, inside the step and on some replicas only, of a function of another file that reads.

    Example: `self.board.histogram("loss", total)`, whose method plots `values.cpu()`.
    """
    if not facts.context.effects.reads(call) or not facts.steps.inside(call):
        return
    guard = kept_from(call, facts)
    if guard is None or not any(facts.values.on_device(arg.value) for arg in call.args):
        return
    if _nothing_is_pending(guard, facts):
        return
    line = facts.context.position(guard).line
    elsewhere = [ran for ran in facts.context.run_by(call) if ran.path != facts.context.file]
    for ran in elsewhere[:1]:  # in this file the read itself is reported
        message = (
            f"{ran.name} ({at_line(ran.line, ran.path)}) reads a value of the device, called in some "
            "replicas "
            f"only ({at_line(line)}), inside the step: the replicas run different graphs, and all hang"
        )
        yield GraphDifference(call, message)


def _pending(at: cst.CSTNode, source: cst.CSTNode, guard: Guard, facts: Facts) -> GraphDifference:
    """Return the finding on a read at `at`, below `guard`, of a pending value that all replicas computed."""
    computed, line = (facts.context.position(location).line for location in (source, guard))
    message = (
        f"computed after the step ({at_line(computed)}), read in some replicas only ({at_line(line)}): "
        "the replicas run different graphs before the next collective; compute it inside the step"
    )
    return GraphDifference(at, message)


def _reads_parameter(
    function: cst.FunctionDef, index: int, keyword: cst.Name | None, facts: Facts
) -> Guard | None:
    """Return the test under which `function` reads the argument at `index`, or `keyword`."""
    names = parameters(function)
    name = keyword.value if keyword is not None else names[index] if index < len(names) else None
    mentions = {name}
    kept = function.params.star_kwarg
    if keyword is not None and name not in names and kept is not None:
        mentions = {kept.name.value}
        loops: list[cst.CompFor | cst.For] = [*nodes_of(function, cst.CompFor)]
        for loop in (*loops, *nodes_of(function, cst.For)):
            if any(name.value == kept.name.value for name in facts.below(loop.iter, cst.Name)):
                mentions |= {name.value for name in facts.below(loop.target, cst.Name)}
    reading = (*nodes_of(function, cst.Call), *nodes_of(function, cst.FormattedStringExpression))
    for node in reading if mentions != {None} else ():
        reads = any(
            name.value in mentions
            for read in reads_at(node, facts)
            for name in facts.below(read, cst.Name)
        )
        guard = kept_from(node, facts) if reads else None
        runs = guard is not None and never_runs(node, facts.context) is None
        if guard is not None and guard is not function and runs:
            return guard
    return None
