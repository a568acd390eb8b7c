"""A loop over data that the recording wrote turn by turn, as one scan.

Turns are runs of the same operators on the same lines of the original. What differs from turn to turn may be
the index that an array is read at, which counts from a number upwards, and what the turn before gave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch

from converters.graph.ir import Fact, Frame, Held, Item, Op, Ref, held, references, uses
from converters.graph.recording.drawn import draws

# How many turns are a loop, and how many operators a turn may have.
_TURNS, _LONGEST = 4, 400
# Operators on two tensors that compute in the wider of their dtypes.
_PROMOTING = {f"aten.{name}.Tensor" for name in ("add", "sub", "mul", "div")}
_HALF = (torch.float16, torch.bfloat16)
_ZEROS = ("aten.zeros.", "aten.zeros_like.", "aten.new_zeros.")
_SELECT, _STACK = "aten.select.int", "aten.stack.default"


@dataclass(frozen=True)
class Over:
    """An array that a scan goes over: along which axis, from which index, and what a turn calls its part."""

    array: Ref
    axis: int
    first: int
    part: int


@dataclass(frozen=True)
class Stacked:
    """Result of each turn: its number in a turn, the number of the stack, its axis, and the source
    lines.
    """

    turn: int
    whole: int
    axis: int
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class Scan:
    """A loop over data.

    Attributes:
        body: the operators of a turn, without those that read what it goes over.
        starts: what the first turn is given by the one before, `Ref` or `Held`.
        widened: for each of these, whether it is narrower than what the turns carry: zeros in 16 bits, to
            which the first turn adds a float32.
        carried: for each of these, its number in a turn, and that of what the turn gives in its place.
        finals: for each, its number after the last turn.
        over: the arrays it goes over.
        stacked: what each turn gives.
        count: how many turns there are.
        frames: where in the source.
    """

    body: tuple[Op, ...]
    starts: tuple[Any, ...]
    widened: tuple[bool, ...]
    carried: tuple[tuple[int, int], ...]
    finals: tuple[int, ...]
    over: tuple[Over, ...]
    stacked: tuple[Stacked, ...]
    count: int
    frames: tuple[Frame, ...]

    @property
    def outs(self) -> tuple[int, ...]:
        """The tensors that it gives."""
        return (*self.finals, *(stack.whole for stack in self.stacked))

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Inputs of a turn other than the carried state and the parts of the arrays."""
        own = {out for op in self.body for out in op.outs}
        own |= {before for before, _ in self.carried} | {array.part for array in self.over}
        values: dict[Any, Any] = {}
        for op in self.body:
            operands = (op.arguments, op.named)
            values |= {ref: ref for ref in references(operands) if ref.id not in own}
            values |= {value: value for value in held(operands)}
        return tuple(values.values())


def with_scans(
    items: Sequence[Item], later: Set[int], facts: Mapping[int, Fact]
) -> list[Item | Scan]:
    """Items with turns of a loop over data as a scan.

    Args:
        items: in order.
        later: tensors that are used after these items.
        facts: shape and dtype of every tensor.
    """
    result: list[Item | Scan] = []
    kinds = _kinds(items)
    at = 0
    while at < len(items):
        start = _scan_at(items, kinds, at, later, facts)
        if start is None:
            result.append(items[at])
            at += 1
            continue
        scan, end, stacks = start
        result.append(scan)
        items = [*items[:end], *(item for item in items[end:] if item not in stacks)]
        kinds = _kinds(items)
        at = end
    return result


def _kinds(items: Sequence[Item]) -> list[int]:
    """A number for each item: equal ones are one operator at one place; what is no operator has its own."""
    known: dict[Any, int] = {}
    return [
        known.setdefault((item.target, item.frames, item.single, len(item.outs)), len(known))
        if isinstance(item, Op)
        else -1 - at
        for at, item in enumerate(items)
    ]


def _scan_at(
    items: Sequence[Item], kinds: Sequence[int], at: int, later: Set[int], facts: Mapping[int, Fact]
) -> tuple[Scan, int, list[Op]] | None:
    """The scan that begins here, where it ends, and the operators that put its turns together."""
    for period in range(1, min(_LONGEST, (len(items) - at) // _TURNS) + 1):
        if kinds[at + period] != kinds[at]:
            continue
        turn = kinds[at : at + period]
        count = 1
        while kinds[at + count * period : at + (count + 1) * period] == turn:
            count += 1
        if count < _TURNS:
            continue
        turns = [
            [
                item
                for item in items[at + k * period : at + (k + 1) * period]
                if isinstance(item, Op)
            ]
            for k in range(count)
        ]
        end = at + count * period
        zeros = {
            out
            for item in items[:at]
            if isinstance(item, Op) and item.target.startswith(_ZEROS)
            for out in item.outs
        }
        scan = _Turns(turns, facts, zeros).scan(items[end:], later)
        if scan is not None:
            return scan[0], end, scan[1]
    return None


def _operands(op: Op) -> list[Ref]:
    return [*references((op.arguments, op.named))]


class _Turns:
    """Turns with equal operators, as a scan if what they are given allows it."""

    def __init__(
        self, turns: Sequence[Sequence[Op]], facts: Mapping[int, Fact], zeros: Set[int]
    ) -> None:
        self.turns, self.facts, self.zeros = turns, facts, zeros
        # Tensor → its turn, and which of the turn's tensors it is.
        self.made = {
            out: (k, place)
            for k, turn in enumerate(turns)
            for place, out in enumerate(out for op in turn for out in op.outs)
        }
        # Place of what the turn before gives → what the first turn is given.
        self.starts: dict[int, Any] = {}
        self.over: list[Over] = []

    def scan(self, after: Sequence[Item], later: Set[int]) -> tuple[Scan, list[Op]] | None:
        body = []
        if any(draws(op.target, op.arguments) for op in self.turns[0]):
            return None  # in a scan each turn would draw the same
        for place, ops in enumerate(zip(*self.turns, strict=True)):
            over = self._read(ops)
            if over is not None:
                self.over.append(over)
                continue
            pairs = [(op.arguments, tuple(sorted(op.named.items()))) for op in ops]
            if not self._same(pairs):
                return None
            body.append(self.turns[1][place])
        if not self.starts or not self.over:
            return None  # nothing goes on from turn to turn, or over no data
        outs = self._outs(after, later)
        if outs is None:
            return None
        stacked, stacks = outs
        numbers = [[out for op in turn for out in op.outs] for turn in self.turns]
        carried = tuple((numbers[0][place], numbers[1][place]) for place in self.starts)
        widened = []
        for (before, _), start in zip(carried, self.starts.values(), strict=True):
            if not isinstance(start, Ref):
                return None
            widened.append(self.facts[start.id] != self.facts[before])
            if widened[-1] and not self._widens(start, before, stacks):
                return None
        used = {ref.id for op in body for ref in references((op.arguments, op.named))}
        if any(
            self.made[number][0] == 0 and number not in dict(carried)
            for number in used & set(self.made)
        ):
            return None
        frames = self.turns[0][0].frames
        return (
            Scan(
                tuple(body),
                tuple(self.starts.values()),
                tuple(widened),
                carried,
                tuple(numbers[-1][place] for place in self.starts),
                tuple(self.over),
                stacked,
                len(self.turns),
                frames,
            ),
            stacks,
        )

    def _widens(self, start: Ref, carried: int, stacks: Sequence[Op]) -> bool:
        """Whether the first turn computes the same with a start in the dtype that the turns carry.

        Operators that read the start widen it. If it is zero, they may also give a narrower number than in
        the next turn: it is the same number, and what reads it widens it.
        """
        narrow, wide = self.facts[start.id], self.facts[carried]
        if (narrow.shape, wide.dtype) != (wide.shape, torch.float32) or narrow.dtype not in _HALF:
            return False
        first, second = self.turns[:2]
        narrower = {
            a
            for op, other in zip(first, second, strict=True)
            for a, b in zip(op.outs, other.outs, strict=True)
            if self.facts[a] != self.facts[b]
        }
        of_start = {out for op in first if start in _operands(op) for out in op.outs}
        if narrower and not (start.id in self.zeros and narrower <= of_start):
            return False
        read = {start.id, *narrower}
        known = {ref.id for stack in stacks for ref in _operands(stack)}
        return not known & narrower and all(
            op.target in _PROMOTING for op in first if read & {ref.id for ref in _operands(op)}
        )

    def _read(self, ops: Sequence[Op]) -> Over | None:
        """An array that the turns read one after the other."""
        if ops[0].target != _SELECT or ops[0].named:
            return None
        arrays, axes = ({op.arguments[i] for op in ops} for i in range(2))
        array, axis = next(iter(arrays)), next(iter(axes))
        if len(arrays) > 1 or len(axes) > 1 or not isinstance(array, Ref) or array.id in self.made:
            return None
        first = ops[0].arguments[2]
        shape = self.facts[array.id].shape
        if [op.arguments[2] for op in ops] != list(range(first, first + len(ops))) or first < 0:
            return None
        return Over(array, axis % len(shape), first, ops[1].outs[0])

    def _same(self, values: Sequence[Any]) -> bool:
        """Whether the turns are given the same, or what the same place of the turn before gives."""
        first = values[0]
        if isinstance(first, tuple | list):
            if any(type(value) is not type(first) or len(value) != len(first) for value in values):
                return False
            return all(self._same(value) for value in zip(*values, strict=True))
        if not any(isinstance(value, Ref) for value in values):
            return all(type(value) is type(first) and value == first for value in values)
        if all(value == first for value in values):
            return isinstance(first, Ref) and first.id not in self.made
        if not all(isinstance(value, Ref) and value.id in self.made for value in values[1:]):
            return False
        wheres = [self.made[value.id] for value in values[1:]]
        places = {place for _, place in wheres}
        if len(places) > 1:
            return False
        place = places.pop()
        if [k for k, _ in wheres] == list(range(1, len(values))):
            return isinstance(first, Ref) and self.made.get(first.id) == (0, place)
        if [k for k, _ in wheres] == list(range(len(values) - 1)):
            outside = isinstance(first, Held) or (
                isinstance(first, Ref) and first.id not in self.made
            )
            return outside and self.starts.setdefault(place, first) == first
        return False

    def _outs(
        self, after: Sequence[Item], later: Set[int]
    ) -> tuple[tuple[Stacked, ...], list[Op]] | None:
        """Results of the turns that are used later: the last carried state, and stacks of all
        turns.
        """
        stacked: list[Stacked] = []
        stacks: list[Op] = []
        last = len(self.turns) - 1
        free: Counter[int] = Counter()
        for item in after:
            used = [number for number in uses(item) if number in self.made]
            whole = self._stacked(item)
            if whole is not None and isinstance(item, Op):
                stacked.append(whole)
                stacks.append(item)
            else:
                free.update(used)
        free.update(number for number in later if number in self.made)
        for number in free:
            turn, place = self.made[number]
            if turn != last or place not in self.starts:
                return None
        return tuple(stacked), stacks

    def _stacked(self, item: Item) -> Stacked | None:
        if not isinstance(item, Op) or item.target != _STACK:
            return None
        parts = item.arguments[0]
        axis = item.arguments[1] if len(item.arguments) > 1 else item.named.get("dim", 0)
        wheres = [self.made.get(part.id) if isinstance(part, Ref) else None for part in parts]
        if len(parts) != len(self.turns) or wheres[0] is None:
            return None
        if wheres != [(k, wheres[0][1]) for k in range(len(parts))]:
            return None
        rank = len(self.facts[item.outs[0]].shape)
        return Stacked(parts[1].id, item.outs[0], axis % rank, item.frames)
