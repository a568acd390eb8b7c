"""Cache of the few values that were used last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class LastUsed(Generic[Value]):
    """Cache of a few values; the least recently used value is dropped first.

    Args:
        most: maximum number of values.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: OrderedDict[Hashable, Value] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value under a key, or make it; old values are dropped before that."""
        if key not in self._held:
            while len(self._held) >= self._most:
                self._held.popitem(last=False)
            self._held[key] = make()
        self._held.move_to_end(key)
        return self._held[key]

    def forget(self, key: Hashable | None = None) -> None:
        """Drop the value under a key, or all values."""
        if key is None:
            self._held.clear()
        else:
            self._held.pop(key, None)
