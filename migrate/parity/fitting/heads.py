"""What a query's and a key's weights may have in them that torch's have not: heads turned, a factor.

Neither is seen where the layer is: what it gives is torch's up to just that. The first layer behind the
attention tells, and the passes try.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from converters.layers.layout import UNCHANGED, Layout, Merge, Permute, Split, affine, chain
from converters.target.words import words_of
from migrate.parity.fitting.trying import Choices, Open, Tried

Array = np.ndarray[Any, Any]

_QUERY, _KEY = "query", "key"
_INTO = frozenset((_QUERY, _KEY, "value", "qkv"))
# Of these not all is a query's, or no axis is a head's.
_OTHER = frozenset(("value", "norm"))
# As torch has them, and the two ways in which rotary positions can be turned.
_ROTATIONS = ("", "halves interleaved", "interleaved ones as halves")
_ROWS = ("rows of heads",)
# Of a head's side: 1/√side is in the query's kernel (MaxText), or torch has it there.
_POWERS = (0.0, -0.5, 0.5)


@dataclass(frozen=True)
class Heads:
    """How a layer's arrays, whose last axis is a head's, differ from torch's.

    Attributes:
        rotation: which order its rows have.
        power: of the head's side, that is a factor.
    """

    rotation: int = 0
    power: float = 0.0

    @property
    def plain(self) -> bool:
        """Whether they are torch's."""
        return self == Heads()

    def turned(self, shape: tuple[int, ...]) -> Layout:
        """The order of the last axis."""
        axis, side = len(shape) - 1, shape[-1]
        if not self.rotation or side % 2:
            return UNCHANGED
        pairs = (2, side // 2) if self.rotation == 1 else (side // 2, 2)
        swapped = Permute((*range(axis), axis + 1, axis))
        return chain((Split(axis, pairs), swapped, Merge(axis, pairs[::-1])))

    def factor(self, side: int) -> float:
        """By which they are multiplied."""
        return float(side**self.power)

    def layout(self, shape: tuple[int, ...]) -> Layout:
        """Both."""
        return chain((self.turned(shape), affine(self.factor(shape[-1]), 0.0)))


class Questions:
    """What is open of the heads in a pass.

    Args:
        choices: what the pass takes.
        found: what it notes.
    """

    def __init__(self, choices: Choices, found: Tried) -> None:
        self._choices, self._found = choices, found
        self._open: dict[Any, tuple[str, Array]] = {}
        self._answered: set[Any] = set()

    def heads(self, name: str, given: Array, shape: tuple[int, ...], parted: int) -> Heads:
        """How the arrays of a layer are made of torch's.

        Args:
            name: of torch's layer.
            given: what that was given.
            shape: of the kernel, the heads' side last.
            parted: how many differences are known.
        """
        words = _words(name)
        if not words & {_QUERY, _KEY} or words & _OTHER or len(shape) < 2:
            return Heads()
        rotation = self._rank(_ROWS, len(_ROTATIONS), name, given, parted)
        power = 0
        if _QUERY in words:
            power = self._rank(("factor", *sorted(words)), len(_POWERS), name, given, parted)
        return Heads(rotation if shape[-1] % 2 == 0 else 0, _POWERS[power])

    def agrees(self, name: str, given: Array, parted: int) -> None:
        """Behind an attention a layer is given what torch's was: what was taken for its heads is right.

        Once the models have parted, the values are torch's own, and say nothing.
        """
        if parted or _words(name) & _INTO:
            return
        for key, (asking, its) in list(self._open.items()):
            if _above(asking) == _above(name) and not np.array_equal(its, given):
                del self._open[key]
                self._answered.add(key)
                self._found.open = [one for one in self._found.open if one.pattern != key]

    def _rank(self, key: Any, count: int, name: str, given: Array, parted: int) -> int:
        if key not in self._answered:
            self._open[key] = name, given
            self._found.open.append(Open(key, count, parted))
        return self._choices.get(key, 0)


def said(choices: Choices) -> str:
    """What the choices of a pass make of the rows of heads, in words; "" if they are torch's."""
    rotation = choices.get(_ROWS, 0)
    return f"rows of queries' and keys' heads turned ({_ROTATIONS[rotation]})" if rotation else ""


def _words(name: str) -> frozenset[str]:
    """Of a layer's own name, or of its part's."""
    return words_of(name.replace(".", "/").rpartition("/")[2].replace("#", "/")).names


def _above(name: str) -> str:
    return name.rpartition(".")[0]
