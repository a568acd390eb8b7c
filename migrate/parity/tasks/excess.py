"""Excess precision: roundings to bfloat16 that the TPU's compiler leaves out.

`xla_allow_excess_precision` is on by default. Where a model rounds to bfloat16 between two operations of the
same fusion, XLA continues in float32. That is more exact, but a different result than without fusion, on a
GPU, or with the next version of the compiler. Close decisions (the top token of a language model) can
change.

The program is compiled for a TPU both ways, by the real compiler. With the flag off it has a
`reduce-precision` where the model rounds. Those that are missing with the flag on are the roundings left
out, each with its operation and source line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from migrate.compiler.compile import TOPOLOGY, compile_for_tpu
from migrate.compiler.hlo import SourceTable, computations
from migrate.compiler.program import CompilerProgram
from migrate.parity.ground.results import ParityCheck, Section

FLAG = "xla_allow_excess_precision"
SOURCE = "compiled for a TPU with xla_allow_excess_precision on and off"


@dataclass(frozen=True)
class Rounding:
    """Rounding to bfloat16 (or float16) that excess precision leaves out.

    Attributes:
        operation: operation whose result is rounded, in the framework's words ("aten__softmax",
            "jit(f)/mul").
        hlo: the instruction of XLA ("multiply").
        shape: shape of the result.
        source: `file.py:line`; "" if the program does not record it.
        count: number of such instructions.
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
    """Effect of excess precision on a program.

    Attributes:
        program: its name.
        roundings: roundings that are left out, in the order of the program.
        compiler: "libtpu 0.0.42.1 for TPU v5 lite".
        undetermined: why the effect is unknown; "" if it is known.
    """

    program: str
    roundings: tuple[Rounding, ...]
    compiler: str
    undetermined: str = ""


def find_excess(
    program: CompilerProgram, *, topology: str = TOPOLOGY, timeout: float = 300.0
) -> Excess:
    """Compile a program with the flag on and off, and compare."""
    compiled = compile_for_tpu(
        program, [{FLAG: True}, {FLAG: False}], topology=topology, timeout=timeout
    )
    if compiled.undetermined:
        return Excess(program.name, (), "", compiled.undetermined)
    on, off = compiled.texts
    return Excess(
        program.name, left_out(on, off), f"libtpu {compiled.libtpu} for {compiled.device}"
    )


def left_out(on: str, off: str) -> tuple[Rounding, ...]:
    """Roundings in the HLO of `off` that are not in the HLO of `on`."""
    # The model's own roundings (`lax.reduce_precision`) are in both.
    counted = Counter(_roundings(off))
    counted.subtract(_roundings(on))
    return tuple(
        Rounding(operation, hlo, shape, source, count)
        for (operation, hlo, shape, source), count in counted.items()
        if count > 0
    )


def excess_section(excess: Excess) -> Section:
    """Section for the report; an undetermined effect does not pass."""
    name = "excess precision"
    if excess.undetermined:
        row = ParityCheck("roundings left out", None, None, 0.0, False, SOURCE, note="undetermined")
        return Section(name, (row,), notes=(f"undetermined: {excess.undetermined}",))
    total = sum(rounding.count for rounding in excess.roundings)
    row = ParityCheck(
        "roundings left out", None, float(total), 0.0, not total, SOURCE, note=excess.compiler
    )
    notes = [str(rounding) for rounding in excess.roundings]
    if total:
        notes.append(
            "rounded as written: jax.jit(…, compiler_options={'xla_allow_excess_precision': False}), or "
            "for torch_xla XLA_FLAGS=--xla_allow_excess_precision=false"
        )
    return Section(name, (row,), notes=tuple(notes))


def _roundings(text: str) -> Iterator[tuple[str, str, tuple[int, ...], str]]:
    """Yield operation, instruction, shape and source of each reduce-precision's operand in an HLO module."""
    sources = SourceTable(text)
    for computation in computations(text):
        for instruction in computation.values():
            if instruction.opcode == "reduce-precision":
                producer = computation.get(instruction.operand)
                hlo = producer.opcode if producer else ""
                operation = producer.operation if producer else ""
                source = sources.of(producer.line) if producer else ""
                yield operation or hlo, hlo, instruction.shape, source
