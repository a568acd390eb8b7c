"""Ends of the graph that only some replicas reach, with pending values on all."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from migrate.catalogue.words import WAITS
from migrate.check.rules.ranks.early_end import ended_early
from migrate.check.rules.ranks.parting import GraphDifference
from migrate.reading.facts import Facts
from migrate.syntax.origins import at_line


def synchronized(node: cst.Call, facts: Facts) -> Iterator[GraphDifference]:
    """Yield a sync between steps under a test of the rank."""
    guard = facts.guards.around(node)
    if guard is None or not facts.steps.between(node):
        yield from cut_early(node, facts)
        return
    line = facts.context.position(guard).line
    message = (
        f"synchronized in some replicas only ({at_line(line)}): what is pending in the others is put into a "
        "later graph; synchronize in all"
    )
    yield GraphDifference(node, message)


def cut_early(node: cst.Call, facts: Facts) -> Iterator[GraphDifference]:
    """Yield a call on some replicas that ends the graph while a collective is pending on all."""
    name = facts.names.of(node.func) or ""
    waits = name in WAITS or facts.context.effects.waits(node)
    cut = ended_early(node, facts) if waits else None
    if cut is not None:
        guard, collective = (facts.context.position(cut_node).line for cut_node in cut)
        message = (
            f"synchronized in some replicas only ({at_line(guard)}), with a collective pending "
            f"({at_line(collective)}): it runs there in another graph than in the others; "
            "torch_xla.sync() in all "
            "before it"
        )
        yield GraphDifference(node, message)
