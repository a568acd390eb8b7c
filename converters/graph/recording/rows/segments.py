"""Rows between counts that rest on values: `x.split(counts.tolist())`, `x[start : start + counts[i]]`.

Each piece has all rows, and says which of them are its own. `torch.cat` of such pieces takes each row from
its own piece.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch


class MixedRowsError(RuntimeError):
    """Rows chosen by a mask depend on each other, or on how many there are."""


class Count(int):
    """A number of rows that rests on values; Python may ask whether there are any.

    Attributes:
        tensor: the number.
        asked: whether it may be asked; given what tells if there are none.
    """

    tensor: torch.Tensor
    asked: Callable[[Callable[[], bool]], bool]

    def __new__(cls, tensor: torch.Tensor, number: int, asked: Any) -> Count:
        """Make one of a tensor of no axes, which is `number` for Python."""
        made = super().__new__(cls, number)
        made.tensor, made.asked = tensor, asked
        return made

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
            none, one, many = (bool(compare(count, other)) for count in (0, 1, 1009))
            if one == many != none and self.asked(lambda: bool(self.tensor == 0)):
                return one
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
    """The numbers of a tensor of one axis."""
    return [Count(one, number, asked) for one in tensor.unbind(0)]


def cut(index: Any) -> bool:
    """Whether an index is a slice between such counts."""
    return isinstance(index, slice) and (
        isinstance(index.start, Count) or isinstance(index.stop, Count)
    )


def chosen_by(index: slice, size: Any, device: torch.device) -> torch.Tensor:
    """Which of so many rows a slice between counts takes."""
    rows = torch.arange(size, device=device)
    if index.start is None or (type(index.start) is int and index.start == 0):
        return rows < _plain(index.stop)
    after = rows >= _plain(index.start)
    return after if index.stop is None else after & (rows < _plain(index.stop))


def parted(sizes: Sequence[Any], size: Any, device: torch.device) -> list[torch.Tensor]:
    """Which of so many rows belong to each piece of these sizes."""
    made, start = [], None
    for one in sizes:
        stop = one if start is None else start + one
        made.append(chosen_by(slice(start, stop), size, device))
        start = stop
    return made


def with_segment(rows: Any, chosen: torch.Tensor) -> Any:
    """A tensor of all rows, of which these belong to a piece."""
    rows._segment = chosen
    if not rows.is_floating_point():
        rows._chosen, rows._whole = chosen, False
    return rows


def follow(result: Any, arguments: Sequence[Any]) -> None:
    """Say of what is computed of one piece alone, row by row, that it is of this piece."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    pieces = {id(one._segment): one._segment for one in arguments if hasattr(one, "_segment")}
    if len(pieces) != 1:
        return
    (chosen,) = pieces.values()
    for one in result if isinstance(result, tuple | list) else (result,):
        rows = isinstance(one, torch.Tensor) and one.dim() > 0 and not hasattr(one, "_segment")
        if rows and statically_known_true(one.shape[0] == chosen.shape[0]):
            with_segment(one, chosen)


def joined(pieces: Sequence[Any], poisoned: bool) -> torch.Tensor:
    """Each row from the piece that it belongs to; what belongs to none is NaN, if `poisoned`."""
    first, *others = pieces
    made: torch.Tensor = first
    if poisoned and first.is_floating_point():
        made = torch.where(_along(first._segment, first), first, torch.nan)
    for one in others:
        made = torch.where(_along(one._segment, one), one, made)
    return made


def _along(chosen: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return chosen[(..., *(None for _ in range(rows.dim() - 1)))]


def _plain(value: Any) -> Any:
    return value.tensor if isinstance(value, Count) else value
