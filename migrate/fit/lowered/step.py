"""The program of one step, and what its arguments are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from migrate.compiler.program import CompilerProgram

REMEDIES = ("bf16", "remat", "shard", "batch")


@dataclass(frozen=True)
class ProgramArgument:
    """An argument of the program.

    Attributes:
        kind: "parameter", "gradient", "optimizer state", "statistics", "input" or "constant".
        name: name in the framework.
    """

    kind: str
    name: str


@dataclass(frozen=True)
class Wanted:
    """Description of the program to make.

    Attributes:
        target: `file.py:factory`, `linen:…`, `torch:…`, `port:folder`, ….
        inputs: what `--inputs` was given: what one data-parallel replica takes.
        optimizer: optimizer of a training step, or "" for a forward pass.
        loss: "mse", "cross_entropy", "auto" or `file.py:function`.
        mesh: axis → devices along it; {} is data=N.
        rules: a file that says which axis of which weight is cut along which axis of the mesh; "" for none.
        devices: N.
        dtype: dtype to which weights and real inputs are cast; "" leaves them.
        remat: whether values are computed again for the gradients.
        shard: whether what `rules` leaves whole is cut along the axes of the batch.
    """

    target: str
    inputs: tuple[str, ...]
    optimizer: str = ""
    loss: str = "auto"
    mesh: Mapping[str, int] = field(default_factory=dict)
    rules: str = ""
    devices: int = 1
    dtype: str = ""
    remat: bool = False
    shard: bool = False


@dataclass(frozen=True)
class StepProgram:
    """A program of a step.

    Attributes:
        program: the program.
        arguments: the arguments, by number.
        times: how often the step runs it.
        outputs: the known outputs, by number. New values of arguments have the arguments' names.
    """

    program: CompilerProgram
    arguments: tuple[ProgramArgument, ...]
    times: int = 1
    outputs: tuple[ProgramArgument, ...] = ()


@dataclass(frozen=True)
class LoweredStep:
    """Input of a compiler: one program, or several that make one step.

    Attributes:
        parts: the programs, in the order of their first run.
        trains: whether it is a step of training, with gradients.
        notes: what the report must say of it.
        shown: maps a location in a file that ran to the location that the user knows.
        cuts: locations of reads inside the step. The program is then only a part of the step.
        host_seconds: processor time that Python took to make the step's inputs and programs here; 0 where
            that was not measured.
        backward: the line that began the backward pass, as a place in a file that ran; "" if unknown.
        package: package that made the programs; "": torch_xla or JAX, by their format.
        eager_bytes: the most bytes of tensors alive at once, where operators run one by one; else 0.
        repeated: whether each device computes the whole batch: no gradients are brought together then.
    """

    parts: tuple[StepProgram, ...]
    trains: bool
    notes: tuple[str, ...] = ()
    shown: Callable[[str], str] = str
    cuts: tuple[str, ...] = ()
    host_seconds: float = 0.0
    backward: str = ""
    package: str = ""
    eager_bytes: int = 0
    repeated: bool = False

    @property
    def framework(self) -> str:
        """Package that made the programs, which asks for a version of libtpu."""
        return self.package or ("torch_xla" if self.of_torch else "jax")

    @property
    def of_torch(self) -> bool:
        """Whether torch_xla has made it."""
        return any(part.program.format == "hlo" for part in self.parts)

    @property
    def remedies(self) -> tuple[str, ...]:
        """Changes of the step that `--try` can make."""
        if self.package == "torch_tpu":
            return ("bf16", "batch")
        if self.of_torch:
            return tuple(remedy for remedy in REMEDIES if remedy != "shard")
        return REMEDIES if any(part.arguments for part in self.parts) else ()  # of a file none


def part_of(facts: dict[str, Any], shown: str) -> StepProgram:
    """A program that was pending, as the compiler is given it."""
    aliases = tuple((int(a), int(b)) for a, b in facts["aliases"])
    arguments = tuple(ProgramArgument(kind, name) for kind, name in facts["arguments"])
    outputs = tuple(ProgramArgument(kind, name) for kind, name in facts["outputs"])
    return StepProgram(
        CompilerProgram(shown, "hlo", facts["hlo"], aliases=aliases), arguments, outputs=outputs
    )
