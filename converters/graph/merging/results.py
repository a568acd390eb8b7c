"""Calls of one module that do the same, but return fewer results: unread results are added.

The last turn of a recurrent cell passes no state to another turn. It is the same call nevertheless.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

from converters.graph.ir import Call, Fact, Graph, Op, Taken, calls


def with_same_results(graph: Graph) -> Graph:
    """The graph in which equal calls of a module have the same results."""
    alike: dict[Any, list[Call]] = defaultdict(list)
    for call in calls(graph.root):
        if call.path:
            alike[call.path, call.method, _form(call)].append(call)
    facts = dict(graph.facts)
    more: dict[tuple[str, int], tuple[Taken, ...]] = {}
    for several in alike.values():
        full = max(several, key=lambda call: len(call.taken))
        for call in several:
            if len(call.taken) < len(full.taken):
                taken = _taken_as(call, full, facts)
                if taken:
                    more[call.path, call.number] = taken
    if not more:
        return graph

    def made(call: Call) -> Call:
        body = tuple(made(item) if isinstance(item, Call) else item for item in call.body)
        return replace(call, body=body, taken=more.get((call.path, call.number), call.taken))

    return replace(graph, root=made(graph.root), facts=facts)


def _form(call: Call) -> tuple[Any, ...]:
    """The operators and calls of a call in order, for comparison."""
    labels = tuple(each.label for each in call.arguments)
    return labels, tuple(_said(item) for item in call.body)


def _said(item: Any) -> Any:
    if isinstance(item, Op):
        return item.target, len(item.outs)
    return item.path, item.method, tuple(each.label for each in item.taken)


def _taken_as(call: Call, full: Call, facts: dict[int, Fact]) -> tuple[Taken, ...]:
    """The results of a call in the form of a fuller call; none if they are not in it."""
    known = {each.label: each for each in call.taken}
    if len(known) != len(call.taken) or not set(known) <= {each.label for each in full.taken}:
        return ()
    inside = {
        each.inside: own.inside for each, own in zip(full.arguments, call.arguments, strict=True)
    }
    for theirs, own in zip(full.body, call.body, strict=True):
        inside |= dict(zip(theirs.outs, own.outs, strict=True))
    results = []
    for each in full.taken:
        if each.label in known:
            results.append(known[each.label])
            continue
        if each.inside not in inside:
            return ()
        number = max(facts) + 1
        facts[number] = facts[inside[each.inside]]
        results.append(Taken(each.label, inside[each.inside], number))
    return tuple(results)
