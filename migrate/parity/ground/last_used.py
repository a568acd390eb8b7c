"""Holds the few things that were used last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class LastUsed(Generic[Value]):
    """A cache of a few things; what was not used for longest goes first.

    Args:
        most: how many are held.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: OrderedDict[Hashable, Value] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """What is held under a key, or what is made now; room for that is there before."""
        if key not in self._held:
            while len(self._held) >= self._most:
                self._held.popitem(last=False)
            self._held[key] = make()
        self._held.move_to_end(key)
        return self._held[key]

    def forget(self, key: Hashable | None = None) -> None:
        """Hold nothing under a key, or nothing at all."""
        if key is None:
            self._held.clear()
        else:
            self._held.pop(key, None)
