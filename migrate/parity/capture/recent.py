"""Knows tensors again that come several times within a few calls, by themselves and not by their values."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

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
        self._known: OrderedDict[int, tuple[weakref.ref[Any], int, Hashable]] = OrderedDict()

    def identity(self, tensor: Any, array: np.ndarray[Any, Any], version: int = 0) -> Hashable:
        """Of a tensor with these values.

        Args:
            version: another one after each write into it.
        """
        known = self._known.get(id(tensor))
        # Another tensor may have the id of one that is gone.
        if known is None or known[0]() is not tensor or known[1] != version:
            known = weakref.ref(tensor), version, self.by_values(array)
        self._known[id(tensor)] = known
        self._known.move_to_end(id(tensor))
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return known[2]
