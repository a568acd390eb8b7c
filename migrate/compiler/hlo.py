"""The text of a compiled HLO module: its instructions by computation, and their source lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# `%name = f32[4,32]{1,0:T(4,128)} add(%a, %b), …, metadata={op_name="…" stack_frame_id=7}`
_INSTRUCTION = re.compile(
    r"^\s*(?:ROOT )?%?(?P<name>[\w.-]+) = (?P<dtype>\w+)\[(?P<shape>[\d,]*)\]\S* (?P<op>[\w-]+)"
    r"\(%?(?P<operand>[\w.-]*)"
)
_OP_NAME, _FRAME = re.compile(r'op_name="([^"]*)"'), re.compile(r"stack_frame_id=(\d+)")
_LINE = re.compile(r'source_file="([^"]*)" source_line=(\d+)')
# Frames of a framework say little: the model's line is the innermost outside of them.
_FRAMEWORK = re.compile(r"/(site|dist)-packages/(torch|torch_xla|jax|jaxlib|flax)/")


@dataclass(frozen=True)
class Instruction:
    """An instruction whose result is one array.

    Attributes:
        name: in its computation.
        opcode: of XLA ("multiply").
        shape: of the result.
        operand: the name of the first one, "" if it has none.
        line: the whole text.
    """

    name: str
    opcode: str
    shape: tuple[int, ...]
    operand: str
    line: str

    @property
    def operation(self) -> str:
        """In the framework's words ("aten__softmax", "jit(f)/mul"); "" if the program does not tell."""
        found = _OP_NAME.search(self.line)
        return found[1] if found else ""


def computations(text: str) -> Iterator[dict[str, Instruction]]:
    """The instructions of each computation of a module, by name, in the order of the program."""
    read: dict[str, Instruction] = {}
    for line in text.splitlines():
        if line.startswith(("%", "ENTRY")):
            yield read
            read = {}
        if match := _INSTRUCTION.match(line):
            shape = tuple(int(size) for size in match["shape"].split(",") if size)
            name = match["name"]
            read[name] = Instruction(name, match["op"], shape, match["operand"], line)
    yield read


class Sources:
    """The source lines of an HLO module: tables at its head, referred to by number."""

    def __init__(self, text: str) -> None:
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
        users = [place for place in places if not _FRAMEWORK.search(place)]
        return next(iter(users or places), "")

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
