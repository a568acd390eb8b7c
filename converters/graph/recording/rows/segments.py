"""Rows between counts that depend on values: `x.split(counts.tolist())`, `x[start : start +
counts[i]]`.

Each piece has all rows, and marks its own rows. `torch.cat` of such pieces takes each row from its
own piece.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch


class MixedRowsError(RuntimeError):
    """Rows chosen by a mask depend on each other, or on how many there are."""


class Count(int):
    """A number of rows that depends on values. Python may ask whether there are any.

    Attributes:
        tensor: the number.
        asked: whether Python may ask; its argument tests whether there are none.
    """

    tensor: torch.Tensor
    asked: Callable[[Callable[[], bool]], bool]

    def __new__(cls, tensor: torch.Tensor, number: int, asked: Any) -> Count:
        """Make a count from a tensor without axes, which is `number` for Python."""
        count = super().__new__(cls, number)
        count.tensor, count.asked = tensor, asked
        return count

    def _with(self, tensor: torch.Tensor) -> Count:
        return Count(tensor, int.__int__(self), self.asked)

    def __add__(self, other: Any) -> Count:
        return self._with(self.tensor + _plain(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Count:
        return self._with(self.tensor - _plain(other))

    def __rsub__(self, other: Any) -> Count:
        return self._with(_plain(other) - self.tensor)

    def _compared(self, compare: Callable[[Any, Any], Any], other: Any) -> bool:
        if not isinstance(other, Count):
            none, single, many = (bool(compare(count, other)) for count in (0, 1, 1009))
            if single == many != none and self.asked(lambda: bool(self.tensor == 0)):
                return single
        raise MixedRowsError("something rests on how many rows there are")

    def __eq__(self, other: object) -> bool:
        return self._compared(operator.eq, other)

    def __ne__(self, other: object) -> bool:
        return self._compared(operator.ne, other)

    def __lt__(self, other: Any) -> bool:
        return self._compared(operator.lt, other)

    def __le__(self, other: Any) -> bool:
        return self._compared(operator.le, other)

    def __gt__(self, other: Any) -> bool:
        return self._compared(operator.gt, other)

    def __ge__(self, other: Any) -> bool:
        return self._compared(operator.ge, other)

    def __bool__(self) -> bool:
        return self._compared(operator.ne, 0)

    __hash__ = int.__hash__

    def _none(self, *_: Any) -> Any:
        raise MixedRowsError("something is computed of how many rows there are")

    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _none
    __mod__ = __rmod__ = __pow__ = __rpow__ = __neg__ = __float__ = _none


def counts_of(tensor: torch.Tensor, number: int, asked: Any) -> list[Count]:
    """The elements of a one-axis tensor as counts."""
    return [Count(element, number, asked) for element in tensor.unbind(0)]


def cut(index: Any) -> bool:
    """Whether an index is a slice between such counts."""
    return isinstance(index, slice) and (
        isinstance(index.start, Count) or isinstance(index.stop, Count)
    )


def chosen_by(index: slice, size: Any, device: torch.device) -> torch.Tensor:
    """Mask of the rows, of `size`, that a slice between counts takes."""
    rows = torch.arange(size, device=device)
    if index.start is None or (type(index.start) is int and index.start == 0):
        return rows < _plain(index.stop)
    after = rows >= _plain(index.start)
    return after if index.stop is None else after & (rows < _plain(index.stop))


def parted(sizes: Sequence[Any], size: Any, device: torch.device) -> list[torch.Tensor]:
    """Masks of the rows, of `size`, that belong to the pieces of these sizes."""
    pieces, start = [], None
    for piece_size in sizes:
        stop = piece_size if start is None else start + piece_size
        pieces.append(chosen_by(slice(start, stop), size, device))
        start = stop
    return pieces


def with_segment(rows: Any, chosen: torch.Tensor) -> Any:
    """A tensor of all rows, with the rows that belong to a piece marked."""
    rows._segment = chosen
    if not rows.is_floating_point():
        rows._chosen, rows._whole = chosen, False
    return rows


def follow(result: Any, arguments: Sequence[Any]) -> None:
    """Mark the results of a row-by-row computation on one piece as rows of this piece."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    pieces = {
        id(argument._segment): argument._segment
        for argument in arguments
        if hasattr(argument, "_segment")
    }
    if len(pieces) != 1:
        return
    (chosen,) = pieces.values()
    for tensor in result if isinstance(result, tuple | list) else (result,):
        rows = (
            isinstance(tensor, torch.Tensor)
            and tensor.dim() > 0
            and not hasattr(tensor, "_segment")
        )
        if rows and statically_known_true(tensor.shape[0] == chosen.shape[0]):
            with_segment(tensor, chosen)


def joined(pieces: Sequence[Any], poisoned: bool) -> torch.Tensor:
    """Each row from the piece that it belongs to. Rows of no piece are NaN if `poisoned`."""
    first, *others = pieces
    rows: torch.Tensor = first
    if poisoned and first.is_floating_point():
        rows = torch.where(_along(first._segment, first), first, torch.nan)
    for piece in others:
        rows = torch.where(_along(piece._segment, piece), piece, rows)
    return rows


def _along(chosen: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return chosen[(..., *(None for _ in range(rows.dim() - 1)))]


def _plain(value: Any) -> Any:
    return value.tensor if isinstance(value, Count) else value
