"""Differences of a query's and a key's weights from torch's: reordered heads, or a factor.

Neither is visible at the layer: its output equals torch's up to exactly that. The first layer after the
attention shows the difference, and the passes try the alternatives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from converters.layers.layout import UNCHANGED, Layout, Merge, Permute, Split, affine, chain
from converters.target.words import words_of
from migrate.parity.fitting.trying import Choices, Open, TriedPass

Array = np.ndarray[Any, Any]

_QUERY, _KEY = "query", "key"
_INTO = frozenset((_QUERY, _KEY, "value", "qkv"))
# Layers that are only in part a query's, or have no axis of heads.
_OTHER = frozenset(("value", "norm"))
# Torch's order, and the two ways to reorder rows for rotary positions.
_ROTATIONS = ("", "halves interleaved", "interleaved ones as halves")
_ROWS = ("rows of heads",)
# Power of the head size: 1/√size is in the query's kernel (MaxText), or torch has it there.
_POWERS = (0.0, -0.5, 0.5)


@dataclass(frozen=True)
class Heads:
    """Difference from torch's of a layer's arrays, whose last axis is a head's.

    Attributes:
        rotation: index of the order of its rows.
        power: exponent of the head size, as a factor.
    """

    rotation: int = 0
    power: float = 0.0

    @property
    def plain(self) -> bool:
        """Whether the arrays equal torch's."""
        return self == Heads()

    def turned(self, shape: tuple[int, ...]) -> Layout:
        """Layout that reorders the last axis."""
        axis, side = len(shape) - 1, shape[-1]
        if not self.rotation or side % 2:
            return UNCHANGED
        pairs = (2, side // 2) if self.rotation == 1 else (side // 2, 2)
        swapped = Permute((*range(axis), axis + 1, axis))
        return chain((Split(axis, pairs), swapped, Merge(axis, pairs[::-1])))

    def factor(self, side: int) -> float:
        """Factor of the arrays."""
        return float(side**self.power)

    def layout(self, shape: tuple[int, ...]) -> Layout:
        """Layout of both, order and factor."""
        return chain((self.turned(shape), affine(self.factor(shape[-1]), 0.0)))


class OpenHeadChoices:
    """Open questions about the heads in a pass.

    Args:
        choices: the choices of the pass.
        tried: the record of the pass.
    """

    def __init__(self, choices: Choices, tried: TriedPass) -> None:
        self._choices, self._found = choices, tried
        self._open: dict[Any, tuple[str, Array]] = {}
        self._answered: set[Any] = set()

    def heads(self, name: str, inputs: Array, shape: tuple[int, ...], parted: int) -> Heads:
        """Choose how the arrays of a layer differ from torch's.

        Args:
            name: name of torch's layer.
            inputs: inputs of torch's layer.
            shape: shape of the kernel, with the head size last.
            parted: number of known differences.
        """
        words = _words(name)
        if not words & {_QUERY, _KEY} or words & _OTHER or len(shape) < 2:
            return Heads()
        rotation = self._rank(_ROWS, len(_ROTATIONS), name, inputs, parted)
        power = 0
        if _QUERY in words:
            power = self._rank(("factor", *sorted(words)), len(_POWERS), name, inputs, parted)
        return Heads(rotation if shape[-1] % 2 == 0 else 0, _POWERS[power])

    def agrees(self, name: str, inputs: Array, parted: int) -> None:
        """Confirm the choice for the heads, if a layer after an attention has torch's inputs.

        Once the models have diverged, the values are torch's own, and prove nothing.
        """
        if parted or _words(name) & _INTO:
            return
        for key, (asking, its) in list(self._open.items()):
            if _above(asking) == _above(name) and not np.array_equal(its, inputs):
                del self._open[key]
                self._answered.add(key)
                self._found.open = [
                    question for question in self._found.open if question.pattern != key
                ]

    def _rank(self, key: Any, count: int, name: str, inputs: Array, parted: int) -> int:
        if key not in self._answered:
            self._open[key] = name, inputs
            self._found.open.append(Open(key, count, parted))
        return self._choices.get(key, 0)


def said(choices: Choices) -> str:
    """Describe the choices of a pass for the rows of heads; "" if they are torch's."""
    rotation = choices.get(_ROWS, 0)
    return f"rows of queries' and keys' heads turned ({_ROTATIONS[rotation]})" if rotation else ""


def _words(name: str) -> frozenset[str]:
    """Words of the name of a layer, or of its part."""
    return words_of(name.replace(".", "/").rpartition("/")[2].replace("#", "/")).names


def _above(name: str) -> str:
    return name.rpartition(".")[0]
