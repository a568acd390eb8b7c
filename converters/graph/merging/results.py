"""Calls of one module that do the same, of which one gives less: what nothing reads of a call is given too.

The last turn of a recurrent cell gives no state to another turn. It is the same call nevertheless.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

from converters.graph.ir import Call, Fact, Graph, Op, Taken, calls


def with_same_results(graph: Graph) -> Graph:
    """The graph, its calls of a module that do the same with the same results."""
    alike: dict[Any, list[Call]] = defaultdict(list)
    for one in calls(graph.root):
        if one.path:
            alike[one.path, one.method, _form(one)].append(one)
    facts = dict(graph.facts)
    more: dict[tuple[str, int], tuple[Taken, ...]] = {}
    for several in alike.values():
        full = max(several, key=lambda one: len(one.taken))
        for one in several:
            if len(one.taken) < len(full.taken):
                taken = _taken_as(one, full, facts)
                if taken:
                    more[one.path, one.number] = taken
    if not more:
        return graph

    def made(one: Call) -> Call:
        body = tuple(made(item) if isinstance(item, Call) else item for item in one.body)
        return replace(one, body=body, taken=more.get((one.path, one.number), one.taken))

    return replace(graph, root=made(graph.root), facts=facts)


def _form(one: Call) -> tuple[Any, ...]:
    """What a call does, as far as it is to be compared: its operators and calls, in order."""
    given = tuple(each.label for each in one.given)
    return given, tuple(_said(item) for item in one.body)


def _said(item: Any) -> Any:
    if isinstance(item, Op):
        return item.target, len(item.outs)
    return item.path, item.method, tuple(each.label for each in item.taken)


def _taken_as(one: Call, full: Call, facts: dict[int, Fact]) -> tuple[Taken, ...]:
    """The results of a call as those of a fuller one; none where they cannot be found in it."""
    known = {each.label: each for each in one.taken}
    if len(known) != len(one.taken) or not set(known) <= {each.label for each in full.taken}:
        return ()
    inside = {each.inside: own.inside for each, own in zip(full.given, one.given, strict=True)}
    for theirs, own in zip(full.body, one.body, strict=True):
        inside |= dict(zip(theirs.outs, own.outs, strict=True))
    made = []
    for each in full.taken:
        if each.label in known:
            made.append(known[each.label])
            continue
        if each.inside not in inside:
            return ()
        number = max(facts) + 1
        facts[number] = facts[inside[each.inside]]
        made.append(Taken(each.label, inside[each.inside], number))
    return tuple(made)
