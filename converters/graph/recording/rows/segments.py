"""Rows between counts that rest on values: `x.split(counts.tolist())`, `x[start : start + counts[i]]`.

Each piece has all rows, and says which of them are its own. `torch.cat` of such pieces takes each row from
its own piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class Count(int):
    """A number of rows that rests on values: 1 for Python, which may ask whether there are any.

    Attributes:
        tensor: the number.
    """

    tensor: torch.Tensor

    def __new__(cls, tensor: torch.Tensor) -> Count:
        """Make one of a tensor of no axes."""
        made = super().__new__(cls, 1)
        made.tensor = tensor
        return made

    def __add__(self, other: Any) -> Count:
        return Count(self.tensor + _plain(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Count:
        return Count(self.tensor - _plain(other))

    def __rsub__(self, other: Any) -> Count:
        return Count(_plain(other) - self.tensor)


def counts_of(tensor: torch.Tensor) -> list[Count]:
    """The numbers of a tensor of one axis."""
    return [Count(one) for one in tensor.unbind(0)]


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
