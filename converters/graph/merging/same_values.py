"""Equality of the values that two recordings of a model hold."""

from __future__ import annotations

from typing import Any

import torch

from converters.graph.ir import Free, Graph, Held, Ref


class SameValues:
    """Comparison of values of two recordings whose tensors are numbered differently.

    Attributes:
        first, second: graphs of the recordings.
        known: number of a tensor in the first graph → its number in the second.
    """

    def __init__(self, first: Graph, second: Graph) -> None:
        self.first, self.second = first, second
        self.known: dict[int, int] = {}

    def is_same(self, value: Any, other: Any) -> bool:
        """Whether a value of the first recording equals a value of the second."""
        if isinstance(value, Ref) and isinstance(other, Ref):
            return self.known.get(value.id) == other.id
        if isinstance(value, Held) and isinstance(other, Held):
            return self._is_same_constant(value, other)
        if isinstance(value, Free) and isinstance(other, Free):
            return value.hint == other.hint
        if isinstance(value, tuple | list) and isinstance(other, tuple | list):
            return len(value) == len(other) and all(map(self.is_same, value, other))
        if isinstance(value, dict) and isinstance(other, dict):
            return value.keys() == other.keys() and all(
                self.is_same(value[key], other[key]) for key in value
            )
        return type(value) is type(other) and (
            value == other or (value != value and other != other)
        )

    def _is_same_constant(self, constant: Held, other: Held) -> bool:
        """Whether two constants are equal in value: their names depend on what was recorded. Weights and
        buffers have their own names.
        """
        value = self.first.constants.get(constant.key)
        expected = self.second.constants.get(other.key)
        if value is None or expected is None:
            return value is expected and constant == other
        return torch.equal(value, expected)
