"""Records of a watched run on torch_tpu: one file of JSON for each process."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from migrate.observe.graph_dump import DumpFrame


@dataclass(frozen=True)
class Compilation:
    """A kernel that was new to its process: an operator for one combination of shapes.

    Attributes:
        op: the operator, as torch_tpu names it.
        shapes: the types and shapes of its inputs, as in "f32[8, 4], f32[6, 4]".
        line: the user's line that ran it, or that started the backward pass; None: no line of the user's.
        backward: whether it was part of a backward pass.
        step: number of optimizer steps before it.
        seconds: time to compile it, or to read it from the cache on disk.
        failed: whether XLA refused it.
    """

    op: str
    shapes: str
    line: DumpFrame | None
    backward: bool
    step: int
    seconds: float
    failed: bool = False


@dataclass(frozen=True)
class Failure:
    """Error that ended a rank.

    Attributes:
        text: name and first line of the error.
        line: the user's innermost line in its traceback.
        op: operator that torch_tpu does not implement, if that was the error; else "".
    """

    text: str
    line: DumpFrame | None
    op: str = ""


@dataclass
class EagerRecord:
    """Activity of a process.

    Attributes:
        rank: its rank; None without one.
        steps: number of optimizer steps.
        seconds: times of steps without a compilation, in seconds.
        first_loss, last_loss: losses of the first and the last backward pass; None without one.
        parameters: number of parameters with gradients.
        changed: number of these whose values changed.
        compilations: the compilations, in order.
        operators: number of operators that ran on the device.
        dropped: number of operators that torch_tpu did not record.
        failure: the error that ended the process; None if it ended by itself.
    """

    rank: int | None = None
    steps: int = 0
    seconds: list[float] = field(default_factory=list)
    first_loss: float | None = None
    last_loss: float | None = None
    parameters: int = 0
    changed: int = 0
    compilations: list[Compilation] = field(default_factory=list)
    operators: int = 0
    dropped: int = 0
    failure: Failure | None = None


def write(folder: Path, record: EagerRecord) -> None:
    """Write the record of this process."""
    path = folder / f"eager.{os.getpid()}.json"
    # A process that is killed here leaves no half of a file.
    part = path.with_suffix(".part")
    part.write_text(json.dumps(asdict(record)))
    part.replace(path)


def read(folder: Path) -> Iterator[EagerRecord]:
    """Yield the records of a run, by rank; processes without a rank come last."""
    records = [_record(json.loads(path.read_text())) for path in folder.glob("eager.*.json")]
    yield from sorted(records, key=lambda record: (record.rank is None, record.rank or 0))


def _record(value: dict[str, Any]) -> EagerRecord:
    compilations = [
        Compilation(**{**entry, "line": _frame(entry["line"])}) for entry in value["compilations"]
    ]
    failure = value["failure"]
    if failure is not None:
        failure = Failure(**{**failure, "line": _frame(failure["line"])})
    return EagerRecord(**{**value, "compilations": compilations, "failure": failure})


def _frame(value: dict[str, Any] | None) -> DumpFrame | None:
    return DumpFrame(**value) if value else None
