"""Recognize tensors that recur within a few calls, by object instead of by value."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from migrate.parity.ground.last_used import LastUsed

# The next layers receive a layer's output: attention receives one tensor three times, with others between.
_KEPT = 8


class Recent:
    """Identities for a dump (`dump.Named`) of the last few tensors, without keeping them alive.

    A layer's output and the next layer's argument are the same object. Comparing its values again costs as
    much as writing it.

    Args:
        by_values: computes the identity of an unknown tensor (`DumpWriter.identity`).

    Attributes:
        by_values: for tensors that may have been written into unnoticed.
    """

    def __init__(self, by_values: Callable[[np.ndarray[Any, Any]], Hashable]) -> None:
        self.by_values = by_values
        self._known: LastUsed[tuple[weakref.ref[Any], int, Hashable]] = LastUsed(_KEPT)

    def identity(self, tensor: Any, array: np.ndarray[Any, Any], version: int = 0) -> Hashable:
        """Identity of a tensor with these values.

        Args:
            version: changes with each write into the tensor.
        """

        def look() -> tuple[weakref.ref[Any], int, Hashable]:
            return weakref.ref(tensor), version, self.by_values(array)

        known = self._known.get(id(tensor), look)
        # Another tensor may have the id of a deleted tensor.
        if known[0]() is not tensor or known[1] != version:
            self._known.forget(id(tensor))
            known = self._known.get(id(tensor), look)
        return known[2]
