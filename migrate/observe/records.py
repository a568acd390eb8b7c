"""Records of an observed run: its processes write one line of JSON each, and this module reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from migrate.observe.graph_dump import DumpFrame
from migrate.observe.places import ExecutionCause

# The environment variable that names the folder they write to.
OBSERVE_DIRECTORY = "MIGRATE_OBSERVE_DIRECTORY"
ERRORS = "errors"


@dataclass(frozen=True)
class Execution:
    """An execution of a graph.

    Attributes:
        graph: hash of the graph.
        cause: why it happened.
        line: line of the user's code, or None if none of it was running.
        compiled: whether this is the first execution of the graph in its process.
        nodes: the graph itself, if it is the first; else empty.
    """

    graph: str
    cause: ExecutionCause
    line: DumpFrame | None
    compiled: bool
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Interval:
    """Activity of a replica from one sync to the next.

    Attributes:
        rank: rank of the replica.
        number: number of the interval, from 1. The interval after the last sync has the highest.
        line: line of the user's code that synchronized, or None after the last sync.
        seconds: wall time.
        compile_seconds, compiles: torch_xla's metric CompileTime.
        execute_seconds: torch_xla's metric ExecuteTime; on a TPU, the time on the device.
        sent, received: bytes to the device and from it.
        optimizer_steps: how many there were.
        steps_in_graph: the most of one optimizer on XLA.
        unended: the line of the step that was one too many for one graph (`boundaries.MOST_STEPS`).
        fallbacks: ops that XLA does not lower, and how often each ran on the CPU.
        executions: the executions, in order.
        memory: bytes in use on the device, and the most so far, or None if it does not tell.
    """

    rank: int
    number: int
    line: DumpFrame | None
    seconds: float
    compile_seconds: float
    compiles: int
    execute_seconds: float
    sent: int
    received: int
    optimizer_steps: int
    fallbacks: dict[str, int]
    executions: tuple[Execution, ...]
    memory: tuple[int, int] | None = None
    steps_in_graph: int = 0
    unended: DumpFrame | None = None


def note_error(folder: Path, error: BaseException) -> None:
    """Write the exception that ends a process of a run, as Python shows it, in one line."""
    kind = type(error)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    with (folder / ERRORS).open("a") as file:
        file.write(f"{name}: {' '.join(str(error).split())}\n")


def errors_of(folder: Path) -> list[str]:
    """Return the exceptions that ended processes of a run, one line each."""
    path = folder / ERRORS
    return path.read_text().splitlines() if path.exists() else []


def write_line(interval: Interval) -> str:
    """Return `interval` as a line of JSON."""
    return json.dumps(asdict(interval)) + "\n"


def read_lines(folder: Path) -> list[Interval]:
    """Return what all processes of a run wrote to `folder`, by rank and number.

    A line that a killed process left incomplete is left out.
    """
    intervals = [
        _interval(value)
        for path in sorted(folder.glob("*.jsonl"))
        for value in _values(path.read_text())
    ]
    return sorted(intervals, key=lambda interval: (interval.rank, interval.number))


def _values(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            try:
                yield json.loads(line)
            except json.JSONDecodeError:  # cut short, and continued by the next one
                continue


def _interval(value: dict[str, Any]) -> Interval:
    executions = tuple(
        Execution(
            graph=execution["graph"],
            cause=ExecutionCause(execution["cause"]),
            line=_frame(execution["line"]),
            compiled=execution["compiled"],
            nodes=tuple(execution["nodes"]),
        )
        for execution in value.pop("executions")
    )
    memory = value.pop("memory")
    return Interval(
        **{**value, "line": _frame(value["line"]), "unended": _frame(value["unended"])},
        executions=executions,
        memory=tuple(memory) if memory else None,
    )


def _frame(value: dict[str, Any] | None) -> DumpFrame | None:
    return DumpFrame(**value) if value else None
