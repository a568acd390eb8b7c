"""Knows tensors again that come several times within a few calls, by themselves and not by their values."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from migrate.parity.ground.last_used import LastUsed

# What a layer gives the next ones take: attention takes one tensor three times, with others between.
_KEPT = 8


class Recent:
    """Identities for a dump (`dump.Named`) of the last few tensors; none is held by this.

    What one layer puts out and the next takes is one object; to look at its values anew costs as much as to
    write it.

    Args:
        by_values: identity of a tensor that is not known (`DumpWriter.identity`).

    Attributes:
        by_values: for those of which nobody can tell whether something was written into them.
    """

    def __init__(self, by_values: Callable[[np.ndarray[Any, Any]], Hashable]) -> None:
        self.by_values = by_values
        self._known: LastUsed[tuple[weakref.ref[Any], int, Hashable]] = LastUsed(_KEPT)

    def identity(self, tensor: Any, array: np.ndarray[Any, Any], version: int = 0) -> Hashable:
        """Of a tensor with these values.

        Args:
            version: another one after each write into it.
        """

        def look() -> tuple[weakref.ref[Any], int, Hashable]:
            return weakref.ref(tensor), version, self.by_values(array)

        known = self._known.get(id(tensor), look)
        # Another tensor may have the id of one that is gone.
        if known[0]() is not tensor or known[1] != version:
            self._known.forget(id(tensor))
            known = self._known.get(id(tensor), look)
        return known[2]
