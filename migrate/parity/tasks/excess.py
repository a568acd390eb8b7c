"""Excess precision: which roundings to bfloat16 the TPU's compiler leaves out.

`xla_allow_excess_precision` is on by default: where a model rounds to bfloat16 between two operations that
end up in one fusion, XLA goes on in float32. That is more exact, and it is another result: than the same
model without fusion, than on a GPU, than with the next version of the compiler. Close calls (the top token
of a language model) can fall the other way.

The program is compiled for a TPU both ways, by the real compiler. With the flag off it puts a
`reduce-precision` where the model rounds; those that are not there with the flag on are the roundings that
are left out, each with the operation whose result is concerned and its source line.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from migrate.compiler.compile import TOPOLOGY, Program, compile_for_tpu
from migrate.parity.results import Check, Section

FLAG = "xla_allow_excess_precision"
SOURCE = "compiled for a TPU with xla_allow_excess_precision on and off"

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
class Rounding:
    """A rounding to bfloat16 (or float16) that excess precision leaves out.

    Attributes:
        operation: whose result it is, in the framework's words ("aten__softmax", "jit(f)/mul").
        hlo: the instruction of XLA ("multiply").
        shape: of the result.
        source: `file.py:line`, "" if the program does not tell.
        count: how many such instructions.
    """

    operation: str
    hlo: str
    shape: tuple[int, ...]
    source: str
    count: int

    def __str__(self) -> str:
        shape = ",".join(map(str, self.shape))
        times = f" ({self.count} of them)" if self.count > 1 else ""
        place = f", {self.source}" if self.source else ""
        return f"{self.operation}: {self.hlo} [{shape}]{times}{place}"


@dataclass(frozen=True)
class Excess:
    """What excess precision changes in a program.

    Attributes:
        program: its name.
        roundings: those that are left out, in the order of the program.
        compiler: "libtpu 0.0.42.1 for TPU v5 lite".
        undetermined: why it is not known, "" if it is.
    """

    program: str
    roundings: tuple[Rounding, ...]
    compiler: str
    undetermined: str = ""


def find_excess(program: Program, *, topology: str = TOPOLOGY, timeout: float = 300.0) -> Excess:
    """Compile a program with the flag on and off and compare."""
    found = compile_for_tpu(
        program, [{FLAG: True}, {FLAG: False}], topology=topology, timeout=timeout
    )
    if found.undetermined:
        return Excess(program.name, (), "", found.undetermined)
    on, off = found.texts
    return Excess(program.name, left_out(on, off), f"libtpu {found.libtpu} for {found.device}")


def left_out(on: str, off: str) -> tuple[Rounding, ...]:
    """The roundings that are in the HLO of `off` and not in that of `on`."""
    # Those of the model itself (`lax.reduce_precision`) are in both.
    counted = Counter(_roundings(off))
    counted.subtract(_roundings(on))
    return tuple(
        Rounding(operation, hlo, shape, source, count)
        for (operation, hlo, shape, source), count in counted.items()
        if count > 0
    )


def excess_section(excess: Excess) -> Section:
    """As a part of the report. What is undetermined did not pass."""
    name = "excess precision"
    if excess.undetermined:
        row = Check("roundings left out", None, None, 0.0, False, SOURCE, note="undetermined")
        return Section(name, (row,), notes=(f"undetermined: {excess.undetermined}",))
    total = sum(one.count for one in excess.roundings)
    row = Check(
        "roundings left out", None, float(total), 0.0, not total, SOURCE, note=excess.compiler
    )
    notes = [str(one) for one in excess.roundings]
    if total:
        notes.append(
            "rounded as written: jax.jit(…, compiler_options={'xla_allow_excess_precision': False}), or "
            "for torch_xla XLA_FLAGS=--xla_allow_excess_precision=false"
        )
    return Section(name, (row,), notes=tuple(notes))


def _roundings(text: str) -> list[tuple[str, str, tuple[int, ...], str]]:
    """For each reduce-precision of an HLO module: operation, instruction, shape, source of its operand."""
    sources = _Sources(text)
    seen: dict[
        str, tuple[str, str]
    ] = {}  # of the computation that is being read: name → (op, line)
    found = []
    for line in text.splitlines():
        if line.startswith(("%", "ENTRY")):
            seen = {}
        if (match := _INSTRUCTION.match(line)) is None:
            continue
        seen[match["name"]] = (match["op"], line)
        if match["op"] != "reduce-precision":
            continue
        hlo, producer = seen.get(match["operand"], ("", ""))
        shape = tuple(int(size) for size in match["shape"].split(",") if size)
        operation = _OP_NAME.search(producer)
        found.append((operation[1] if operation else hlo, hlo, shape, sources.of(producer)))
    return found


class _Sources:
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
