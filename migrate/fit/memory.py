"""Memory of a chip while a compiled program runs, by its schedule, with the lines that made each array.

The text of a scheduled module is the order of execution, and gives each array's layout, so that what it
takes with its padding is known. Arguments and outputs are there all the time (an output that takes a donated
argument's memory counts once); a temporary from the instruction that makes it to the last one that reads it
or a part of it. What shares memory is read from the program: tuples, bitcasts, the halves of asynchronous
copies, loops that work in place, and the operands that the compiler lists as overwritten.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from migrate.compiler.arrays import HBM, HloArray, Result
from migrate.compiler.hlo import REMATERIALIZED, Computation, HloModule, Instruction, Phase

# What torch_xla calls the node of an argument: nobody named it.
_UNNAMED = "xla__device_data"
# Values that are the memory of others, by another name.
_SAME = frozenset({"bitcast", "optimization-barrier", "while", "add-dependency", "domain"})
_ALIASED = '"aliasing_operands":'
_OUTPUT_ALIAS = re.compile(r"\{([\d, ]*)\}: \((\d+), \{([\d, ]*)\}")
_MOST = 10  # arrays that are shown
_POINTS = 600


@dataclass(frozen=True)
class LiveArray:
    """An array in the chip's memory.

    Attributes:
        array: the array.
        kind: "argument", "output" or "temporary".
        name: the framework's name of an argument, or the operation of a temporary; "" if there is none.
        source: `file.py:line` that made it, or "" if the program does not tell.
        number: number of an argument or an output; -1 for a temporary.
        phase: for a temporary, the pass that made it.
    """

    array: HloArray
    kind: str
    name: str
    source: str
    number: int = -1
    phase: Phase = ""

    @property
    def bytes(self) -> int:
        """Size in memory, with padding."""
        return self.array.padded


@dataclass(frozen=True)
class Memory:
    """HBM that a program uses on each device.

    Attributes:
        arguments, outputs: bytes that are there all the time; outputs without those in donated arguments.
        peak: bytes at the fullest moment, these included.
        at_peak: all that is there then, the largest first.
        curve: bytes after each instruction of the schedule.
        where: the instruction of the peak: its `file.py:line` or operation.
        rematerialized: instructions that compute a value again, so that it need not be kept.
    """

    arguments: int
    outputs: int
    peak: int
    at_peak: tuple[LiveArray, ...]
    curve: tuple[int, ...]
    where: str
    rematerialized: int

    @property
    def largest(self) -> tuple[LiveArray, ...]:
        """The largest arrays at the peak."""
        return self.at_peak[:_MOST]

    @property
    def thinned(self) -> list[tuple[int, int]]:
        """The curve in a few hundred points: an instruction, and the most from it to the next point."""
        width = max(1, len(self.curve) // _POINTS)
        return [(at, max(self.curve[at : at + width])) for at in range(0, len(self.curve), width)]

    @property
    def padding(self) -> int:
        """Bytes at the peak that are there to fill tiles."""
        return sum(held.bytes - held.array.size for held in self.at_peak)


def memory_of(module: HloModule) -> Memory:
    """Follow the schedule of a compiled module."""
    root = module.root
    if root is None:
        return Memory(0, 0, 0, (), (), "", 0)
    entry = _Lifetimes(module, module.entry, frozenset(module.aliases))
    resident = list(_resident(module, entry, root))
    always = sum(held.bytes for held in resident)
    curve = [always + taken for taken in entry.taken]
    at = max(range(len(curve)), key=curve.__getitem__, default=0)
    alive = [*resident, *entry.alive(at)]
    alive.sort(key=lambda held: -held.bytes)
    order = list(module.entry.values())
    there = order[at] if order else root
    return Memory(
        sum(held.bytes for held in resident if held.kind == "argument"),
        sum(held.bytes for held in resident if held.kind == "output"),
        curve[at] if curve else always,
        tuple(alive),
        tuple(curve),
        module.sources.of(there.line) or there.operation,
        sum(
            REMATERIALIZED in instruction.name
            for part in module.computations.values()
            for instruction in part.values()
        ),
    )


def _resident(module: HloModule, entry: _Lifetimes, root: Instruction) -> Iterator[LiveArray]:
    """Arguments, and the outputs that have memory of their own."""
    parameters = {
        instruction.number: instruction
        for instruction in module.entry.values()
        if instruction.opcode == "parameter"
    }
    for number, instruction in sorted(parameters.items()):
        for array in instruction.arrays:
            if array.space == HBM:
                name = instruction.operation if instruction.operation != _UNNAMED else ""
                yield LiveArray(array, "argument", name, "", number)
    makers = entry.makers(root)
    for number, array in enumerate(root.arrays):
        if number not in module.aliases and array.space == HBM:
            maker = makers.get(number)
            name = maker.operation if maker else ""
            source = module.sources.of(maker.line) if maker else ""
            yield LiveArray(array, "output", name, source or module.output_source(number), number)


# A buffer is a number; a value of several arrays is a tuple of such, as its result is.
Buffers = int | tuple["Buffers", ...]


class _Lifetimes:
    """Lifetime of each buffer of one computation.

    Args:
        module: the program.
        computation: a scheduled computation: the entry, or the body of a loop.
        donated: the numbers of its outputs that lie in arguments; None: all lie where the caller says.
    """

    def __init__(
        self, module: HloModule, computation: Computation, donated: frozenset[int] | None = None
    ) -> None:
        self._module = module
        self._computation = computation
        self._order = list(computation.values())
        self._values: dict[str, Buffers] = {}
        self._arrays: dict[int, HloArray] = {}
        self._made: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._lent: set[int] = set()  # arguments and what takes their memory: not of the heap
        self._inner: dict[int, int] = {}  # of what runs computations: the most that these hold
        self._in_place: list[tuple[int, int, int]] = []  # place, operand, result
        for place, instruction in enumerate(self._order):
            for buffer in self._operands(instruction):
                self._last[buffer] = place
            self._values[instruction.name] = self._value(instruction, place)
        self._keep_outputs()
        self._join()
        if donated is not None:
            self._lodge(donated)
        self.taken = self._taken()

    def _operands(self, instruction: Instruction) -> Iterator[int]:
        for name in instruction.operands:
            yield from _numbers(self._values.get(name, ()))

    def _value(self, instruction: Instruction, place: int) -> Buffers:
        taken = [self._values.get(name, ()) for name in instruction.operands]
        match instruction.opcode:
            case "parameter":
                fresh = self._new(instruction.result, place)
                self._lent.update(_numbers(fresh))
                return fresh
            case "tuple":
                return tuple(taken)
            case "get-tuple-element":
                whole = taken[0] if taken else ()
                return whole[instruction.number] if isinstance(whole, tuple) and whole else ()
            case _ if instruction.opcode in _SAME and taken:
                if instruction.opcode == "while":
                    self._run(instruction, place)
                return taken[0] if len(taken) == 1 else tuple(taken)
            case "copy-start" if taken:
                # (the copy, what is copied, a context)
                fresh = self._new(instruction.result, place)
                assert isinstance(fresh, tuple)
                self._forget(fresh[1])
                return (fresh[0], taken[0], *fresh[2:])
            case "copy-done" if taken:
                return taken[0][0] if isinstance(taken[0], tuple) and taken[0] else taken[0]
            case "all-reduce-start":
                return self._overwriting(instruction, place, taken)
            case _ if instruction.opcode.endswith("-start") and isinstance(
                instruction.result, tuple
            ):
                return self._started(instruction, place, taken)
            case _ if instruction.opcode.endswith("-done") and taken:
                return self._done(instruction, place, taken[0])
        self._run(instruction, place)
        return self._overwriting(instruction, place, taken)

    def _started(self, instruction: Instruction, place: int, taken: list[Buffers]) -> Buffers:
        """(what it takes, what it gives, contexts): what it takes is there already."""
        fresh = self._new(instruction.result, place)
        assert isinstance(fresh, tuple)
        if len(fresh) < 2:
            return fresh
        first = instruction.result[0] if isinstance(instruction.result, tuple) else ()
        self._forget(fresh[0])
        return (tuple(taken) if isinstance(first, tuple) else taken[0] if taken else (), *fresh[1:])

    def _done(self, instruction: Instruction, place: int, started: Buffers) -> Buffers:
        if (
            instruction.opcode == "all-reduce-done"
            or not isinstance(started, tuple)
            or len(started) < 2
        ):
            return started
        return started[1]

    def _join(self) -> None:
        """An exchange works in place, where nobody reads what was given to it any more."""
        for place, operand, result in self._in_place:
            if self._last[operand] > place or operand in self._lent or operand not in self._made:
                continue
            if result in self._made and result not in self._lent:
                self._made[result] = self._made[operand]
            self._forget(operand)

    def _lodge(self, donated: frozenset[int]) -> None:
        """Put temporaries, large first, into the memory of outputs that are made later: XLA does so."""
        root = next((instruction for instruction in self._order if instruction.is_root), None)
        outputs = list(_numbers(self._values[root.name])) if root is not None else []
        hosts = sorted(
            {
                number
                for place, number in enumerate(outputs)
                if place not in donated
                and number in self._made
                and self._arrays[number].space == HBM
            },
            key=lambda number: -self._arrays[number].padded,
        )
        guests = sorted(self._heap(), key=lambda number: -self._arrays[number].padded)
        for host in hosts:
            until, room = self._made[host], self._arrays[host].padded
            taken: list[tuple[int, int]] = []
            for guest in guests:
                first, last = self._made.get(guest, until), self._last[guest]
                fits = self._arrays[guest].padded <= room and last < until and guest in self._made
                if fits and all(last < a or first > b for a, b in taken):
                    taken.append((first, last))
                    self._forget(guest)

    def _overwriting(self, instruction: Instruction, place: int, taken: list[Buffers]) -> Buffers:
        """Allocate the result, except for arrays that take an operand's memory."""
        fresh = self._new(instruction.result, place)
        flat = list(_numbers(fresh))
        shared = dict(_shared(instruction, len(instruction.operands)))
        if instruction.opcode in ("dynamic-update-slice", "scatter") and not shared:
            shared = {0: 0}
        if instruction.opcode.removesuffix("-start") == "all-reduce":
            for operand, result in zip(taken, flat, strict=False):
                if isinstance(operand, int) and self._arrays[operand] == self._arrays[result]:
                    self._in_place.append((place, operand, result))
        replaced: dict[int, int] = {}
        for output, operand in shared.items():
            own = list(_numbers(taken[operand])) if operand < len(taken) else []
            if output < len(flat) and len(own) == 1:
                replaced[flat[output]] = own[0]
                self._forget(flat[output])
        return _with(fresh, replaced)

    def _run(self, instruction: Instruction, place: int) -> None:
        """Account for the memory that called computations need beside their arguments."""
        if instruction.opcode not in ("while", "call", "conditional", "async-start"):
            return  # a fusion's values are in registers
        for name in instruction.called:
            body = self._module.computations.get(name)
            if body:
                inner = _Lifetimes(self._module, body)
                most = max(inner.taken, default=0)
                self._inner[place] = max(self._inner.get(place, 0), most)

    def _new(self, result: Result, place: int) -> Buffers:
        if isinstance(result, tuple):
            return tuple(self._new(part, place) for part in result)
        number = len(self._arrays)
        self._arrays[number] = result
        self._made[number] = self._last[number] = place
        return number

    def _forget(self, value: Buffers) -> None:
        for number in _numbers(value):
            self._made.pop(number, None)

    def _keep_outputs(self) -> None:
        """Give returned values memory of their own, which is counted with the outputs."""
        root = next((instruction for instruction in self._order if instruction.is_root), None)
        if root is not None:
            self._lent.update(_numbers(self._values[root.name]))

    def _heap(self) -> Iterator[int]:
        """Buffers of the heap in HBM."""
        for number in self._made:
            if number not in self._lent and self._arrays[number].space == HBM:
                yield number

    def _taken(self) -> list[int]:
        changes = [0] * (len(self._order) + 1)
        for number in self._heap():
            size = self._arrays[number].padded
            changes[self._made[number]] += size
            changes[self._last[number] + 1] -= size
        sizes, now = [], 0
        for place in range(len(self._order)):
            now += changes[place]
            sizes.append(now + self._inner.get(place, 0))
        return sizes

    def alive(self, at: int) -> Iterator[LiveArray]:
        """Temporaries that are alive at an instruction, including those of called computations."""
        for number in self._heap():
            if self._made[number] <= at <= self._last[number]:
                yield self._held(self._arrays[number], self._order[self._made[number]])
        if self._inner.get(at):
            bodies = [self._module.computations[name] for name in self._order[at].called]
            inner = [_Lifetimes(self._module, body) for body in bodies]
            fullest = max(inner, key=lambda lifetimes: max(lifetimes.taken, default=0))
            yield from fullest.alive(max(range(len(fullest.taken)), key=fullest.taken.__getitem__))

    def _held(self, array: HloArray, maker: Instruction) -> LiveArray:
        name, phase = maker.operation or maker.opcode, self._module.sources.phase(maker)
        # An exchange gives the sums of what it takes.
        if maker.opcode.removesuffix("-start") in ("all-reduce", "reduce-scatter"):
            phase = "backward"
        return LiveArray(array, "temporary", name, self._sources[maker.name], phase=phase)

    @cached_property
    def _sources(self) -> Mapping[str, str]:
        return self._module.sources_in(self._computation)

    def makers(self, root: Instruction) -> Mapping[int, Instruction]:
        """Map the number of each output to the instruction that makes it."""
        numbers = list(_numbers(self._values[root.name]))
        return {
            place: self._order[self._made[number]]
            for place, number in enumerate(numbers)
            if number in self._made
        }


def _numbers(value: Buffers) -> Iterator[int]:
    if isinstance(value, tuple):
        for part in value:
            yield from _numbers(part)
    else:
        yield value


def _with(value: Buffers, replaced: Mapping[int, int]) -> Buffers:
    if isinstance(value, tuple):
        return tuple(_with(part, replaced) for part in value)
    return replaced.get(value, value)


def _shared(instruction: Instruction, operands: int) -> Iterator[tuple[int, int]]:
    """(output, operand) of the arrays that share memory, as the compiler has written it.

    `aliasing_operands` numbers operands first and outputs after them.
    """
    if _ALIASED in instruction.line:
        start = instruction.line.index(_ALIASED) + len(_ALIASED)
        for group in json.JSONDecoder().raw_decode(instruction.line, start)[0]["lists"]:
            numbers = [int(number) for number in group["indices"]]
            inputs = [number for number in numbers if number < operands]
            for output in (number for number in numbers if number >= operands):
                if inputs:
                    yield output - operands, inputs[0]
    aliased = instruction.line.partition("output_to_operand_aliasing={")[2]
    if aliased:
        for output, operand, _ in _OUTPUT_ALIAS.findall(aliased.partition("}}")[0] + "}"):
            yield int(output or 0), int(operand)
