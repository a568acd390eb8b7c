"""The text of a compiled HLO module: its computations, their instructions, and their source lines."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from migrate.compiler.arrays import HloArray, Result, leaves, read_result

# `%name = f32[4,32]{1,0:T(4,128)} add(%a, %b), …, metadata={op_name="…" stack_frame_id=7}`
_NAMED = re.compile(r"^\s*(?P<root>ROOT )?%?(?P<name>[\w.-]+) = ")
_OPCODE = re.compile(r" ?(?P<op>[a-z][\w-]*)\(")
_OPERAND = re.compile(r"%([\w.-]+)")
_HEAD = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.-]+) \(")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|branch_computations)=\{?((?:%[\w.-]+(?:, )?)+)")
_CONDITION, _NUMBER = re.compile(r"\bcondition=%?([\w.-]+)"), re.compile(r"constant\((-?\d+)\)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_ALIASES = re.compile(r"\{([\d, ]*)\}: \((\d+), \{([\d, ]*)\}")
_OP_NAME, _FRAME = re.compile(r'op_name="([^"]*)"'), re.compile(r"stack_frame_id=(\d+)")
_LINE = re.compile(r'source_file="([^"]*)" source_line=(\d+)')
# A path may hold a blank where it stands in quotation marks, as in MLIR, or at the start of a line.
_PLACE = re.compile(
    r"""(?:"(/[^"\n]+\.py)"|^[ \t]*(/[^":\n]+\.py)|(/[^":\s]+\.py)):(\d+)""", re.MULTILINE
)
# Frames of a framework or of Python's library say little: the model's line is the innermost outside of them.
_FRAMEWORK = re.compile(
    r"/(site|dist)-packages/(torch|torch_xla|jax|jaxlib|flax|optax)/|<frozen |"
    r"/lib/python3\.\d+/(?!(site|dist)-packages/)|^"
    rf"{re.escape(str(Path(__file__).parents[2]))}/(migrate|converters|shims)/"
)

# Frames of torch_xla and of this project.
_RUNTIME = re.compile(
    r"/(site|dist)-packages/torch_xla/|^"
    rf"{re.escape(str(Path(__file__).parents[2]))}/(migrate|converters|shims)/"
)
_IN_A_PACKAGE = re.compile(rf"^.*-packages/|^{re.escape(str(Path(__file__).parents[2]))}/")


# In the names of what the compiler computes a second time.
REMATERIALIZED = ".remat"
Phase = Literal["forward", "backward", ""]


@dataclass(frozen=True)
class Instruction:
    """An instruction of a computation.

    Attributes:
        name: name in its computation.
        opcode: XLA's opcode ("multiply").
        result: an array, or a tuple.
        operands: the names of what it takes.
        line: the whole text.
        is_root: whether it is what the computation returns.
    """

    name: str
    opcode: str
    result: Result
    operands: tuple[str, ...]
    line: str
    is_root: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result. For a tuple, shape of its first array."""
        return next((array.shape for array in leaves(self.result)), ())

    @property
    def arrays(self) -> tuple[HloArray, ...]:
        """All arrays of the result."""
        return tuple(leaves(self.result))

    @property
    def operand(self) -> str:
        """The name of the first operand, "" if it has none."""
        return self.operands[0] if self.operands else ""

    @property
    def operation(self) -> str:
        """Operation in the framework's words ("aten__softmax", "jit(f)/mul"), or ""."""
        match = _OP_NAME.search(self.line)
        return match[1].replace("\\'", "'") if match else ""

    @property
    def number(self) -> int:
        """Number of a parameter, or of the element that is taken from a tuple."""
        match = re.search(r"index=(\d+)|parameter\((\d+)\)", self.line)
        return int(match[1] or match[2]) if match else 0

    @property
    def called(self) -> tuple[str, ...]:
        """The computations that it runs: of a loop its body, not its condition."""
        match = _CALLED.search(self.line)
        return tuple(_OPERAND.findall(match[1])) if match else ()

    @property
    def constant(self) -> int | None:
        """Whole number of the constant, or None for all other instructions."""
        match = _NUMBER.search(self.line) if self.opcode == "constant" else None
        return int(match[1]) if match else None


Computation = Mapping[str, Instruction]


class HloModule:
    """A compiled program.

    Args:
        text: text of the HLO module.
        shown: maps a location in a file that ran to the location that the user knows.
        outputs: MLIR location of the operation that made each output (`WrittenProgram.outputs`).
        backward: the user's line that began the backward pass, for what its hooks do; "" if unknown.
    """

    def __init__(
        self,
        text: str,
        shown: Callable[[str], str] = str,
        outputs: Sequence[str] = (),
        backward: str = "",
    ) -> None:
        self.text = text
        self._shown = shown
        self._outputs = outputs
        self.sources = SourceTable(text, shown, backward)
        self.entry: Computation = {}
        self.computations: dict[str, Computation] = {}
        for name, is_entry, computation in _computations(text):
            self.computations[name] = computation
            if is_entry:
                self.entry = computation

    def trips(self, loop: Instruction, within: Computation) -> int | None:
        """Return how often a loop runs its body, or None if that depends on values.

        The compiler does not always write it down, so the usual counter is read: from a number, by a number,
        while it is less than a number.
        """
        if trip_count := _TRIPS.search(loop.line):
            return int(trip_count[1])
        named = _CONDITION.search(loop.line)
        condition = self.computations.get(named[1] if named else "", {})
        body = self.computations.get(next(iter(loop.called), ""), {})
        test, turn = _root(condition), _root(body)
        initial = within.get(loop.operand)
        if test is None or turn is None or initial is None or "direction=LT" not in test.line:
            return None
        if test.opcode != "compare" or {turn.opcode, initial.opcode} != {"tuple"}:
            return None

        def number(computation: Computation, name: str) -> int | None:
            """A number that is the same in each turn."""
            instruction = _plain(computation, name)
            if instruction is None or instruction.opcode != "get-tuple-element":
                return instruction.constant if instruction else None
            place = instruction.number
            kept = _plain(body, turn.operands[place])
            same = kept is not None and kept.opcode == instruction.opcode and kept.number == place
            first = _plain(within, initial.operands[place]) if same else None
            return first.constant if first else None

        counter = _plain(condition, test.operands[0])
        if counter is None or counter.opcode != "get-tuple-element":
            return None
        step = _plain(body, turn.operands[counter.number])
        if step is None or step.opcode != "add":
            return None
        sides = [_plain(body, name) for name in step.operands]
        by = [
            number(body, name)
            for name, side in zip(step.operands, sides, strict=True)
            if side is None or (side.opcode, side.number) != (counter.opcode, counter.number)
        ]
        first = _plain(within, initial.operands[counter.number])
        start, end = first.constant if first else None, number(condition, test.operands[1])
        if start is None or end is None or len(by) != 1 or by[0] is None or by[0] <= 0:
            return None
        return max(0, -((start - end) // by[0]))

    @cached_property
    def aliases(self) -> dict[int, int]:
        """Output → the argument whose memory it takes: what was donated."""
        head = self.text[: self.text.find("\n")]
        trips = {}
        for output, argument, _ in _ALIASES.findall(head.partition("input_output_alias=")[2]):
            trips[int(output or 0)] = int(argument)
        return trips

    def output_source(self, number: int) -> str:
        """`file.py:line` of the value that is returned in this place, or "" if nobody knows."""
        place = place_in(self._outputs[number]) if number < len(self._outputs) else ""
        return self._shown(place) if place else ""

    def sources_in(self, computation: Computation) -> Mapping[str, str]:
        """The line of each instruction; of one that the compiler put in, of who first uses what it gives.

        Where that is only returned, it is the line of what it takes.
        """
        sources: dict[str, str] = {}
        if self.root is not None and computation is self.entry:
            is_tuple = self.root.opcode == "tuple"
            for place, name in enumerate(self.root.operands if is_tuple else [self.root.name]):
                sources[name] = self.output_source(place)
        for instruction in reversed(list(computation.values())):
            sources[instruction.name] = self.sources.of(instruction.line) or sources.get(
                instruction.name, ""
            )
            for operand in instruction.operands:
                if sources[instruction.name] and operand in computation:
                    sources[operand] = sources[instruction.name]
        for instruction in computation.values():  # what is only returned: of who made what it takes
            if not sources[instruction.name]:
                sources[instruction.name] = next(
                    filter(None, (sources.get(by) for by in instruction.operands)), ""
                )
        return sources

    @property
    def root(self) -> Instruction | None:
        """Instruction that the program returns, or None if the text holds no program."""
        return _root(self.entry)


def _root(computation: Computation) -> Instruction | None:
    return next((instruction for instruction in computation.values() if instruction.is_root), None)


def _plain(computation: Computation, name: str) -> Instruction | None:
    """Return the instruction that made a value, before copies of the value."""
    instruction = computation.get(name)
    while instruction is not None and instruction.opcode in (
        "copy",
        "bitcast",
        "copy-done",
        "copy-start",
    ):
        instruction = computation.get(instruction.operand)
    return instruction


def computations(text: str) -> Iterator[Computation]:
    """The instructions of each computation of a module, by name, in the order of the program."""
    for _, _, computation in _computations(text):
        yield computation


def _computations(text: str) -> Iterator[tuple[str, bool, dict[str, Instruction]]]:
    name, is_entry = "", False
    read: dict[str, Instruction] = {}
    for line in text.splitlines():
        if line.startswith(("%", "ENTRY")) and (head := _HEAD.match(line)):
            if read:
                yield name, is_entry, read
            name, is_entry, read = head["name"], head["entry"] is not None, {}
        elif (instruction := _instruction(line)) is not None:
            read[instruction.name] = instruction
    if read:
        yield name, is_entry, read


def _instruction(line: str) -> Instruction | None:
    named = _NAMED.match(line)
    if named is None:
        return None
    try:
        result, place = read_result(line, named.end())
    except (ValueError, IndexError):
        return None
    opcode = _OPCODE.match(line, place)
    if opcode is None:
        return None
    end = _closing(line, opcode.end())
    operands = tuple(_OPERAND.findall(line[opcode.end() : end]))
    return Instruction(
        named["name"], opcode["op"], result, operands, line, named["root"] is not None
    )


def _closing(line: str, start: int) -> int:
    """The place of the bracket that closes the one before `start`."""
    depth = 1
    for place in range(start, len(line)):
        depth += {"(": 1, ")": -1}.get(line[place], 0)
        if not depth:
            return place
    return len(line)


def place_in(text: str) -> str:
    """The first `file.py:line` of the user's in a message or a location of the compiler; "" without one."""
    places = _PLACE.findall(text)
    return next(users(f"{''.join(file)}:{line}" for *file, line in places), "")


def users(places: Iterable[str]) -> Iterator[str]:
    """Source locations in the user's code."""
    return (place for place in places if not _FRAMEWORK.search(place))


def from_here(location: str) -> str:
    """Return `file.py:line` with a path from the working directory, if that is shorter."""
    file, colon, line = location.rpartition(":")
    if not colon or not os.path.isabs(file):
        return location
    return f"{min(os.path.relpath(file), file, key=len)}:{line}"


class SourceTable:
    """The source lines of an HLO module: tables at its head, referred to by number."""

    def __init__(self, text: str, shown: Callable[[str], str] = str, backward: str = "") -> None:
        self._shown = shown
        self._backward = backward
        head = text.partition("\n%")[0]
        self._files = dict(re.findall(r'^(\d+) "(.*)"$', _part(head, "FileNames"), re.M))
        self._places = {
            number: (self._files.get(file, ""), line)
            for number, file, line in re.findall(
                r"^(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)", _part(head, "FileLocations"), re.M
            )
        }
        self._frames = {
            number: (place, parent)
            for number, place, parent in re.findall(
                r"^(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?",
                _part(head, "StackFrames"),
                re.M,
            )
        }

    def of(self, line: str) -> str:
        """`file.py:line` of an instruction: the user's, where the frames reach that far."""
        frame = _FRAME.search(line)
        places = self._walk(frame[1]) if frame else []
        if match := _LINE.search(line):  # the innermost one, once more
            places.append(f"{match[1]}:{match[2]}")
        if own := next(users(places), ""):
            return self._shown(own)
        innermost = next(iter(places), "")
        if _RUNTIME.search(innermost):  # a hook of the backward pass, whose frames begin in it
            return self._shown(self._backward) if self._backward else ""
        # Of a framework's line the package is enough: `optax/_src/update.py:42`.
        return _IN_A_PACKAGE.sub("", innermost)

    def phase(self, instruction: Instruction) -> Phase:
        """The pass of a step of training that made a value, as the framework names it, or "" for neither.

        JAX names its transformations. torch_xla has lines of all operations but those of autograd.
        """
        name = instruction.operation
        if "rematted_computation" in name:
            return "forward"
        if "jvp(" in name:
            return "backward" if "transpose(jvp" in name else "forward"
        if not name.startswith("aten__"):
            return ""
        frame = _FRAME.search(instruction.line)
        if frame is None:
            return "backward"
        return "" if any("/torch/optim/" in at for at in self._walk(frame[1])) else "forward"

    def _walk(self, number: str) -> list[str]:
        """The frames from the innermost outwards."""
        places: list[str] = []
        while number in self._frames:
            place, parent = self._frames[number]
            # XLA writes the parent's number plus one: 1 is none.
            number = str(int(parent or 1) - 1)
            if place in self._places:
                file, line = self._places[place]
                places.append(f"{file}:{line}")
        return places


def _part(head: str, title: str) -> str:
    """A table at the head of a module: from its title to the next empty line."""
    match = re.search(rf"^{title}\n(.*?)(?:\n\n|\Z)", head, re.M | re.S)
    return match[1] if match else ""
