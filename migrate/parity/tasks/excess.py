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

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from migrate.compiler.compile import TOPOLOGY, compile_for_tpu
from migrate.compiler.hlo import SourceTable, computations
from migrate.compiler.program import CompilerProgram
from migrate.parity.ground.results import Check, Section

FLAG = "xla_allow_excess_precision"
SOURCE = "compiled for a TPU with xla_allow_excess_precision on and off"


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


def find_excess(
    program: CompilerProgram, *, topology: str = TOPOLOGY, timeout: float = 300.0
) -> Excess:
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


def _roundings(text: str) -> Iterator[tuple[str, str, tuple[int, ...], str]]:
    """For each reduce-precision of an HLO module: operation, instruction, shape, source of its operand."""
    sources = SourceTable(text)
    for computation in computations(text):
        for one in computation.values():
            if one.opcode == "reduce-precision":
                producer = computation.get(one.operand)
                hlo = producer.opcode if producer else ""
                operation = producer.operation if producer else ""
                source = sources.of(producer.line) if producer else ""
                yield operation or hlo, hlo, one.shape, source
