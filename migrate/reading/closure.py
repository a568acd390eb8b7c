"""What follows from some things step by step: callers of callers, files that import those that import."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def closure(starts: Iterable[T], after: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """Yield `starts`, what comes after each of them, and what comes after that, each once."""
    seen: set[T] = set()
    waiting = list(starts)
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            yield one
            waiting += after(one)
