"""Modes that give all rows where a mask chooses some, and that empty such masks."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from converters.graph.recording.detours import is_known_mask, place
from converters.graph.recording.rows import segments
from converters.graph.recording.rows.segments import MixedRowsError

_Tensor = torch.Tensor
_NONZERO = {torch.nonzero, _Tensor.nonzero, torch.argwhere, _Tensor.argwhere}
_SELECTED = {torch.masked_select, _Tensor.masked_select}
_ADDED = {torch.index_add: False, _Tensor.index_add: False, _Tensor.index_add_: True}
_ANSWERS = {_Tensor.__bool__, _Tensor.is_nonzero, torch.is_nonzero}
_READ = {_Tensor.item, _Tensor.__int__, _Tensor.__index__}
_COUNTS = {
    getattr(holder, name) for holder in (torch, _Tensor) for name in ("any", "count_nonzero", "sum")
}
_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name) for name in ("eq", "ge", "gt", "le", "lt", "ne")
}
# A number of rows that no line compares with.
_MANY = 1009
_LISTED = {_Tensor.tolist, _Tensor.numpy}
_SPLIT = {torch.split, _Tensor.split, _Tensor.split_with_sizes}
_JOINED = {torch.cat, torch.concat, torch.concatenate}
# Operators that give the indices of rows in another form.
_SAME_ROWS = {
    _Tensor.clone,
    _Tensor.contiguous,
    _Tensor.detach,
    _Tensor.int,
    _Tensor.long,
    _Tensor.select,
    _Tensor.t,
    _Tensor.to,
    _Tensor.view,
    _Tensor.__getitem__,
    *(
        getattr(holder, name)
        for holder in (torch, _Tensor)
        for name in ("flatten", "reshape", "squeeze", "unbind", "unsqueeze")
    ),
}


class Emptied(TorchFunctionMode):
    """Runs the original with masks emptied at their first use."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for mask in _asked(func, args):
            _empty(mask)
        return func(*args, **(kwargs or {}))


def _asked(func: Any, args: Any) -> list[torch.Tensor]:
    """The masks by which an operator chooses or counts."""
    if func in _COUNTS or func in _NONZERO or (func is torch.where and len(args) == 1):
        asked = [args[0]]
    elif func in _SELECTED:
        asked = [args[1]]
    elif func in (_Tensor.__getitem__, _Tensor.__setitem__):
        asked = [index for index in _parts(args[1]) if _is_mask(index)]
    else:
        return []
    return [mask for mask in asked if _is_mask(mask) or _is_integer(mask)]


def _empty(mask: torch.Tensor) -> None:
    try:
        mask.zero_()
    except RuntimeError:  # an expanded mask: it stays unchanged
        return


def _is_mask(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.bool and value.dim() > 0


def _is_integer(value: Any) -> bool:
    whole = isinstance(value, torch.Tensor) and not value.is_floating_point()
    return whole and not value.is_complex() and value.dim() > 0


def _has_counts(sizes: Any) -> bool:
    listed = isinstance(sizes, tuple | list)
    return listed and any(isinstance(size, segments.Count) for size in sizes)


def _is_segment(value: Any) -> bool:
    return hasattr(value, "_segment")


def _is_constant(value: Any) -> bool:
    return getattr(value, "constant", None) is not None


def _parts(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


class EveryRow(TorchFunctionMode):
    """Gives all rows where a mask chooses some.

    Tensors of indices have an attribute `_chosen`: which of them the mask has chosen, along one
    axis.
    """

    def __init__(
        self,
        *,
        poisoned: bool = False,
        emptied: bool = False,
        number: int = 1,
        verified: Collection[str] | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            poisoned: whether rows that are not chosen are NaN.
            emptied: whether masks are emptied at their first use.
            number: the number that Python gets for the number of rows.
            verified: lines that may ask whether there are rows; None: any line, as values are real.
        """
        super().__init__()
        self.poisoned, self.emptied = poisoned, emptied
        self.number, self.verified = number, verified
        # Lines that choose rows, and lines that asked for rows where there are none.
        self.reported: dict[str, None] = {}
        self.none: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.emptied:
            for mask in _asked(func, args):
                _empty(mask)
        if func in _ANSWERS or func in _READ or func is _Tensor.__format__:
            return self._read(func, args, kwargs)
        if func is torch.where and len(args) == 1 and not kwargs:
            return self._places(args[0])
        if func in _NONZERO and not is_known_mask(args[0]):
            places = self._places(args[0])
            if kwargs.get("as_tuple", False):
                return places
            stacked = torch.stack(places, -1) if len(places) > 1 else places[0].unsqueeze(-1)
            return _with(stacked, *_rows_of(places[0]))
        if func in _SELECTED and args[0].shape == args[1].shape:
            return self._taken(args[0], (args[1],))
        if func is _Tensor.__getitem__ and self._is_choice(_parts(args[1])):
            return self._taken(args[0], _parts(args[1]))
        if func is _Tensor.__setitem__ and self._is_put(_parts(args[1]), args[2]):
            self._put(args[0], _parts(args[1]), args[2])
            return None
        if func in _ADDED and hasattr(args[2], "_chosen"):
            return self._added(_ADDED[func], *args, **kwargs)
        if func is _Tensor.__len__ and hasattr(args[0], "_chosen"):
            chosen = args[0]._chosen
            return self.number if self.asked(lambda: not chosen.any()) else func(*args)
        segments_made = self._segments(func, args, kwargs)
        if segments_made is not None:
            return segments_made
        result = func(*args, **kwargs)
        self._about_rows(func, args, result)
        segments.follow(
            result, [argument for argument in args if isinstance(argument, torch.Tensor)]
        )
        mark = (
            getattr(func, "__name__", "").startswith("mark") or func is torch.ops.tpu_migrate.mark
        )
        if (func in _SAME_ROWS or mark) and hasattr(args[0], "_chosen"):
            for leaf in pytree.tree_leaves(result):
                if isinstance(leaf, torch.Tensor):
                    _with(leaf, *_rows_of(args[0]))
        return result

    def _segments(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Rows between counts, or such rows joined; None for other operators."""
        if func in _LISTED and (counts := self.counts(args[0])) is not None:
            return np.array(counts, object) if func is _Tensor.numpy else counts
        rows = not kwargs.get("dim")
        if func in _SPLIT and rows and not args[2:] and _has_counts(args[1]):
            parts = segments.parted(args[1], args[0].shape[0], args[0].device)
            return tuple(self._segment(args[0], chosen) for chosen in parts)
        if func is _Tensor.__getitem__ and segments.cut(args[1]):
            chosen = segments.chosen_by(args[1], args[0].shape[0], args[0].device)
            return self._segment(args[0], chosen)
        if func in _JOINED and rows and not args[1:] and all(map(_is_segment, args[0])):
            return segments.joined(args[0], self.poisoned)
        return None

    def counts(self, numbers: torch.Tensor) -> list[segments.Count] | None:
        """Numbers that depend on values, as numbers of rows; None if they are something else."""
        if not _is_integer(numbers) or numbers.dim() != 1 or _is_constant(numbers):
            return None
        self._tell()
        return segments.counts_of(numbers, self.number, self.asked)

    def _segment(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        return segments.with_segment(self._left_out(x.clone(), chosen, 0), chosen)

    def _read(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A Python number: the number for the case that there are rows."""
        value = args[0]
        if func is _Tensor.__format__ and _is_constant(value):
            return format(value.constant.item(), *args[1:])
        answer = getattr(value, "_if_rows", None)
        count = hasattr(value, "_of_rows")
        if func is _Tensor.__format__ or _is_constant(value) or (answer is None and not count):
            return func(*args, **kwargs)
        some = True if answer is None else answer
        if not self.asked(lambda: bool(value) != some):
            return func(*args, **kwargs)
        return some if func in _ANSWERS else self.number

    def asked(self, is_none: Callable[[], bool]) -> bool:
        """Whether a line may be answered that there are rows; records where there are none."""
        file, line = place()
        said = f"{file.rpartition('/')[2]}:{line}"
        if self.verified is not None:
            self.reported.setdefault(said)
            return said in self.verified
        with torch._C.DisableTorchFunction():
            if is_none():
                self.none.add(said)
        return True

    def _about_rows(self, func: Any, args: Any, result: Any) -> None:
        """Attach to a number its value for the case that there are rows."""
        if not isinstance(result, torch.Tensor) or result.dim() or not args:
            return
        first = args[0]
        name = getattr(func, "__name__", "").strip("_")
        if func in _COUNTS and (_is_mask(first) or _is_integer(first)):
            if name == "any":
                result._if_rows = True
            else:
                result._of_rows = True
        elif hasattr(first, "_of_rows") and name in _COMPARED and type(args[1]) in (int, float):
            none, single, many = (bool(_COMPARED[name](count, args[1])) for count in (0, 1, _MANY))
            if single == many != none:
                result._if_rows = single
        elif hasattr(first, "_if_rows") and name in ("logical_not", "bitwise_not", "invert"):
            result._if_rows = not first._if_rows

    def _tell(self) -> None:
        file, line = place()
        self.reported.setdefault(f"{file.rpartition('/')[2]}:{line}")

    def _places(self, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The indices of all elements, by axis, with the chosen ones marked.

        Indices of a mask of one axis have `_whole`: they cover the axis in order.
        """
        chosen = (mask if mask.dtype == torch.bool else mask != 0).reshape(-1)
        self._tell()
        places = []
        for axis, size in enumerate(mask.shape):
            numbers = torch.arange(size, device=mask.device)
            for inner in mask.shape[axis + 1 :]:
                numbers = numbers.repeat_interleave(inner)
            for outer in mask.shape[:axis]:
                numbers = numbers.repeat(outer)
            places.append(_with(numbers, chosen, mask.dim() == 1))
        return tuple(places)

    @staticmethod
    def _is_choice(index: tuple[Any, ...]) -> bool:
        return any(
            (_is_mask(index_part) and not is_known_mask(index_part))
            or hasattr(index_part, "_chosen")
            for index_part in index
        )

    def _is_put(self, index: tuple[Any, ...], value: Any) -> bool:
        """Whether it puts rows: a number is written wherever a mask is true."""
        rows = isinstance(value, torch.Tensor) and value.dim() > 0
        return self._is_choice(index) and (
            rows or any(hasattr(index_part, "_chosen") for index_part in index)
        )

    def _by_places(self, x: torch.Tensor, index: tuple[Any, ...]) -> tuple[list[Any], torch.Tensor]:
        """An index without masks, and which of its rows are chosen."""
        chosen: Any = None
        places_by_axis: list[Any] = []
        others = sum(isinstance(index_part, torch.Tensor) for index_part in index) > 1
        for index_part in index:
            if _is_mask(index_part) and not is_known_mask(index_part):
                places = self._places(index_part)
                mine = places[0]._chosen
                whole = index_part.dim() == 1 and not others
                places_by_axis += [slice(None)] if whole else places
            else:
                mine = getattr(index_part, "_chosen", None)
                axis = len(places_by_axis) - places_by_axis.count(None)
                whole = not others and axis < x.dim() and _is_whole(index_part, x.shape[axis])
                places_by_axis.append(slice(None) if whole else index_part)
            if mine is not None:
                if chosen is not None and mine is not chosen and mine.shape != chosen.shape:
                    raise MixedRowsError("rows of two masks in one index")
                chosen = mine if chosen is None or mine is chosen else chosen & mine
        return places_by_axis, chosen

    def _taken(self, x: torch.Tensor, index: tuple[Any, ...]) -> torch.Tensor:
        """All rows."""
        if len(index) == 1 and _is_mask(index[0]):
            self._tell()
            mask = index[0]
            chosen = mask.reshape(-1)
            rows = x.flatten(0, mask.dim() - 1).clone() if mask.dim() > 1 else x.clone()
            return self._left_out(rows, chosen, 0)
        places, chosen = self._by_places(x, index)
        first = next(
            at
            for at, index_part in enumerate(index)
            if _is_mask(index_part) or hasattr(index_part, "_chosen")
        )
        before = index[:first]
        if any(
            index_part is not None and not isinstance(index_part, slice) for index_part in before
        ):
            raise MixedRowsError("an index of another kind before the chosen rows")
        rows = x[tuple(places)]
        rows = rows.clone() if all(isinstance(place, slice) for place in places) else rows
        return self._left_out(rows, chosen, len(before))

    def _left_out(self, rows: torch.Tensor, chosen: torch.Tensor, axis: int) -> torch.Tensor:
        if not self.poisoned or not rows.is_floating_point():
            return rows
        return torch.where(_along(chosen, rows, axis), rows, torch.nan)

    def _put(self, x: torch.Tensor, index: tuple[Any, ...], value: Any) -> None:
        """Write the chosen rows in place."""
        if len(index) == 1 and _is_mask(index[0]):
            mask = index[0]
            self._tell()
            rest = x.shape[mask.dim() :]
            if isinstance(value, torch.Tensor):
                if value.dim() == len(rest) + 1 and value.shape[0] != 1:
                    value = value.reshape(*mask.shape, *rest)
                value = value.to(x.dtype)
            where = mask[(..., *(None for _ in rest))]
            x.copy_(torch.where(where, value, x))
            return
        places, chosen = self._by_places(x, index)
        first = places[0]
        if len(places) == 1 and isinstance(first, slice):
            x.copy_(torch.where(_along(chosen, x, 0), value, x))
            return
        if len(places) > 1 or not isinstance(first, torch.Tensor) or first.dim() != 1:
            raise MixedRowsError("chosen rows are put by an index of several parts")
        count = x.shape[0]
        held = torch.cat([x, x[:1]])  # an extra row that takes the rows that are not chosen
        held[torch.where(chosen, first, count)] = value
        x.copy_(held[:count])

    def _added(
        self,
        in_place: bool,
        x: torch.Tensor,
        dim: int,
        index: torch.Tensor,
        source: torch.Tensor,
        **named: Any,
    ) -> torch.Tensor:
        """Add the chosen rows."""
        chosen = index._chosen
        rows = torch.where(_along(chosen, source, dim), source, 0)
        if _is_whole(index, x.shape[dim]):
            added = {name: option for name, option in named.items() if name == "alpha"}
            return x.add_(rows, **added) if in_place else x.add(rows, **added)
        function = _Tensor.index_add_ if in_place else _Tensor.index_add
        return function(x, dim, index, rows, **named)


def _with(places: torch.Tensor, chosen: torch.Tensor, whole: bool) -> torch.Tensor:
    places._chosen = chosen
    places._whole = whole
    return places


def _rows_of(places: Any) -> tuple[torch.Tensor, bool]:
    return places._chosen, places._whole


def _is_whole(places: Any, count: int) -> bool:
    """Whether the indices cover an axis of this length in order."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    rows = getattr(places, "_whole", False) and places.dim() == 1
    return rows and statically_known_true(places.shape[0] == count)


def _along(chosen: torch.Tensor, rows: torch.Tensor, axis: int) -> torch.Tensor:
    """Mask of the chosen rows, in a shape that broadcasts along an axis of them."""
    behind = rows.dim() - axis % rows.dim() - 1
    return chosen[(..., *(None for _ in range(behind)))]
