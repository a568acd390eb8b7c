"""A module of this package in a process of its own, with its request and its answer as JSON files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def answer_of(
    module: str,
    request: Mapping[str, Any],
    work: Path,
    timeout: float,
    xla_flags: Sequence[str] = (),
) -> Any:
    """Run `python -m MODULE REQUEST` on the CPU and return its answer, or {"error": the reason}.

    Args:
        module: full name of the module.
        request: values for the module. The file for the answer is added to it as "answer".
        work: existing folder for the two files.
        timeout: seconds for the process.
        xla_flags: flags beside those of this process.
    """
    answer, file = work / "answer.json", work / "request.json"
    file.write_text(json.dumps({**request, "answer": str(answer)}))
    root = str(Path(__file__).parents[2])
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
    }
    if xla_flags:
        environment["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *xla_flags]).strip()
    command = [sys.executable, "-m", module, str(file)]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {timeout:g} s"}
    if not answer.exists():
        last = done.stderr.strip().splitlines()[-1:] or ["nothing was printed"]
        return {"error": f"its process ended with {done.returncode}: {last[0]}"}
    return json.loads(answer.read_text())
