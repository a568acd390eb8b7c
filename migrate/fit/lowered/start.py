"""Turn the user's words into a program: in a process of its own, or from a file that holds one."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from migrate import process
from migrate.compiler.program import CompilerProgram
from migrate.fit.errors import FitError
from migrate.fit.lowered.memory_here import REMEDY, WHAT, lacks_memory
from migrate.fit.lowered.step import LoweredStep, ProgramArgument, StepProgram, Wanted
from shims._simulated_tpu.variables import AUTOLOAD

# A file with one of these ends holds a program.
PROGRAMS = (".mlir", ".stablehlo", ".mlirbc")
_TAIL = 400
_GRADIENTS = b"transpose(jvp"  # as JAX names what computes them


def lowered(wanted: Wanted, *, timeout: float) -> LoweredStep:
    """Return the program of the target that the user named.

    Args:
        wanted: the program to make. Without inputs, those that the model suggests (`child.suggested`).
        timeout: seconds for loading and lowering.

    Raises:
        FitError: the program cannot be made. The message is that of the process that tried.
    """
    with tempfile.TemporaryDirectory(prefix="migrate-fit-") as folder:
        request, answer, data = (Path(folder, name) for name in ("request", "answer", "program"))
        request.write_text(json.dumps(asdict(wanted)))
        code, said = process.run(
            [sys.executable, "-m", "migrate.fit.lowered.child", *map(str, (request, answer, data))],
            seconds=timeout,
            environment={
                **os.environ,
                "JAX_PLATFORMS": "cpu",
                "PJRT_DEVICE": "CPU",
                "CPU_NUM_DEVICES": "1",
                AUTOLOAD: "0",
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
        )
        if not answer.exists() and lacks_memory(code, said):
            raise FitError(f"{wanted.target}: {WHAT}", REMEDY)
        if not answer.exists():
            raise FitError(
                f"{wanted.target}: {_why(code, said, timeout)}", "see the model with --debug"
            )
        facts = json.loads(answer.read_text())
        if "what" in facts:
            raise FitError(facts["what"], facts["remedy"])
        with data.open("rb") as programs:
            parts = tuple(
                _part(part_facts, programs.read(part_facts["size"]))
                for part_facts in facts["parts"]
            )
    return LoweredStep(
        parts,
        facts["trains"],
        tuple(facts["notes"]),
        package=facts["package"],
        eager_bytes=facts["eager_bytes"],
        repeated=facts["repeated"],
    )


def _part(facts: dict[str, Any], data: bytes) -> StepProgram:
    aliases = tuple((a, b) for a, b in facts["aliases"])
    arguments, outputs = (
        tuple(ProgramArgument(kind, name) for kind, name in facts[which])
        for which in ("arguments", "outputs")
    )
    program = CompilerProgram(facts["name"], facts["format"], data, facts["partitioned"], aliases)
    return StepProgram(program, arguments, outputs=outputs)


def _why(code: int | None, said: str, timeout: float) -> str:
    if code is None:
        return f"lowering it took more than {timeout:.0f} s"
    if code < 0:
        return f"lowering it ended by {signal.Signals(-code).name}"
    last = next((line for line in reversed(said.splitlines()) if line.strip()), "nothing")
    return f"lowering it failed: {last[-_TAIL:]}"


def read_program(path: Path) -> LoweredStep:
    """Read a StableHLO module from a file. The kinds of its arguments are unknown.

    Raises:
        FitError: it cannot be read, or is none.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FitError(f"{path}: cannot be read ({error.strerror})", "check the path") from None
    is_bytecode = data.startswith(b"ML\xefR")
    if not is_bytecode and b"func.func" not in data:
        raise FitError(
            f"{path}: holds no StableHLO module",
            "write a module with jax.jit(f).lower(…).as_text()",
        )
    program = CompilerProgram(path.name, "stablehlo", data, partitions_of(data) > 1)
    return LoweredStep(
        (StepProgram(program, ()),), _GRADIENTS in data, ("its arguments are unknown",)
    )


def partitions_of(data: bytes) -> int:
    """Return the number of devices of a StableHLO module, or 1 if it names none."""
    match = re.search(rb"mhlo\.num_partitions = (\d+)", data)
    return int(match[1]) if match else 1
