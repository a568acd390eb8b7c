"""The NVIDIA management library is imported, or a program of the NVIDIA driver is run."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.check.common import ImportHazard
from migrate.check.failing_imports import is_optional
from migrate.check.hazard import Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.syntax.tree import code, keyword, nodes_of, string_value

PROGRAMS = re.compile(r"^(?:\S*/)?(nvidia-smi|nvcc|dcgmi)\b")
# The first raise where there is no such program; the others print that there is none.
RUNS = frozenset(
    f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output", "Popen")
)
SHELLS = frozenset({"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"})
DEEPEST = 3


class Nvml(ImportHazard):
    """The NVIDIA management library is imported, or a program of the NVIDIA driver is run.

    **Why.** There is no NVIDIA driver on a TPU host: the first call raises. So does
    `subprocess.run(["nvidia-smi"])`, with FileNotFoundError, also with `check=False`; in a shell
    (`os.system`, `shell=True`) it prints that there is no such program, and its output is empty.

    **What to do.** `xm.get_memory_info()` for memory, which raises on the CPU, or `tpu-info` on the command
    line.
    """

    code = "XLA407"
    name = "nvml"
    severity = Severity.WARNING
    targets = BOTH
    nodes: ClassVar[tuple[type[cst.CSTNode], ...]] = (cst.Import, cst.ImportFrom, cst.Call)
    words = "nvml|nvidia|GPUtil|gpustat|nvcc|dcgmi"
    examples = (
        example(
            """
            import pynvml  # XLA407
            """
        ),
        example(
            """
            import os
            import subprocess

            COMMAND = "nvidia-smi --query-gpu=name --format=csv"


            def log(write):
                out = subprocess.run(["nvidia-smi"], capture_output=True, check=False)  # XLA407 error
                write(out.stdout, subprocess.check_output(COMMAND.split()))  # XLA407 error
                write(subprocess.run(COMMAND, shell=True, check=True))  # XLA407 error
                write(subprocess.run(COMMAND, shell=True))  # XLA407 info
                os.system("nvidia-smi")  # XLA407 info


            def version():
                try:
                    return subprocess.check_output(["/usr/local/cuda/bin/nvcc", "-V"])  # XLA407 info
                except FileNotFoundError:
                    return None
            """
        ),
        example(
            """
            import subprocess

            import psutil

            NOTE = "nvidia-smi shows the memory"
            subprocess.run(["git", "log", "nvidia-smi"])
            """
        ),
    )
    mended = example(
        """
        import torch_xla.core.xla_model as xm
        import torch_xla.runtime as xr

        if xr.device_type() == "TPU":
            print(xm.get_memory_info("xla"))
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one import, or one call that runs a program."""
        if not isinstance(node, cst.Call):
            yield from super().find(node, facts)
            return
        name = facts.names.of(node.func)
        if name not in RUNS | SHELLS:
            return
        command = keyword(node, "args") or keyword(node, "command") or next(iter(node.args), None)
        program = _program(command.value, facts) if command is not None else ""
        if not program:
            return
        shell, check = keyword(node, "shell"), keyword(node, "check")
        in_shell = name in SHELLS or (shell is not None and code(shell.value) != "False")
        checked = name in ("subprocess.check_output", "subprocess.check_call") or (
            check is not None and code(check.value) == "True"
        )
        raises = checked or not in_shell
        what = "this raises" if raises else "this says so, and gives nothing"
        severity = Severity.ERROR if raises and not is_optional(node, facts) else Severity.INFO
        yield self.hit(
            node, f"{program}: there is no such program on a TPU host, {what}; tpu-info", severity
        )


def _program(command: cst.BaseExpression, facts: Facts, depth: int = DEEPEST) -> str:
    """Return the program of the NVIDIA driver, or of CUDA, that a command starts with; empty for another."""
    if isinstance(command, cst.List | cst.Tuple) and command.elements:
        return _program(command.elements[0].value, facts, depth)
    if isinstance(command, cst.Call):  # "nvidia-smi -L".split(), shlex.split("nvidia-smi -L")
        split = isinstance(command.func, cst.Attribute) and command.func.attr.value == "split"
        base = command.func.value if split and isinstance(command.func, cst.Attribute) else command
        texts = [base, *(arg.value for arg in command.args)] if split else []
        programs = (_program(text, facts, depth) for text in texts if text is not command)
        return next((program for program in programs if program), "")
    if isinstance(command, cst.FormattedString):
        command = next(iter(nodes_of(command, cst.FormattedStringText)), command)  # type: ignore[assignment]
    if isinstance(command, cst.FormattedStringText):
        text: str | None = command.value
    else:
        text = string_value(command)
    if text is not None:
        match = PROGRAMS.match(text.lstrip())
        return match[1] if match else ""
    if isinstance(command, cst.Name | cst.Attribute) and depth:
        values = (_program(value, facts, depth - 1) for value in facts.values.given_to(command))
        return next((program for program in values if program), "")
    return ""
