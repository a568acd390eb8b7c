"""Order in which the effects of functions can be computed, and transitive closures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")


def closure(starts: Iterable[T], after: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """Yield `starts` and all that follows from them, each once."""
    seen: set[T] = set()
    waiting = list(starts)
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            yield node
            waiting += after(node)


def callees_first(calls: Mapping[T, Iterable[T]]) -> Iterator[list[T]]:
    """Yield the keys of `calls` in groups, each after the groups that it calls.

    Those that call one another make one group: the strongly connected components, by Tarjan's algorithm
    without recursion.
    """
    index: dict[T, int] = {}
    low: dict[T, int] = {}
    stack: list[T] = []
    on_stack: set[T] = set()
    for start in calls:
        if start in index:
            continue
        work = [(start, iter(calls[start]))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, callees = work[-1]
            for callee in callees:
                if callee not in calls:
                    continue
                if callee not in index:
                    index[callee] = low[callee] = len(index)
                    stack.append(callee)
                    on_stack.add(callee)
                    work.append((callee, iter(calls[callee])))
                    break
                if callee in on_stack:
                    low[node] = min(low[node], index[callee])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    group = [stack.pop()]
                    while group[-1] is not node:
                        group.append(stack.pop())
                    on_stack.difference_update(group)
                    yield group
