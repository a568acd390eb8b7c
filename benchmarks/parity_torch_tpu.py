"""Do the most used types of transformers compute the same on torch_tpu as on torch?

    python benchmarks/parity_torch_tpu.py [--only TYPE…] [--python .venv-torch-tpu/bin/python]

Each type, tiny and random (`benchmarks/zoo_models/huggingface.py`), is saved as a folder. `migrate parity
FOLDER tpu:FOLDER --gradients` compares torch here with torch_tpu on a simulated TPU, in the environment of
`make install-torch-tpu`. A line per type is added to benchmarks/history/parity-torch-tpu.csv: both agree, or
the first layer or section that differs, or the operators that torch_tpu does not implement.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
if __name__ == "__main__":
    os.environ |= {"HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from history import append  # noqa: E402

from benchmarks.port_mesh import TYPES  # noqa: E402

SUBJECT = "parity-torch-tpu"
MISSING = re.compile(r"torch_tpu does not implement (?P<operators>.*?); ")
SECONDS = 1200.0


def main(words: list[str]) -> int:
    """Measure what is asked; print a line per type, and how many agree."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=TYPES)
    default = ROOT / ".venv-torch-tpu/bin/python"
    parser.add_argument("--python", default=str(default), help="interpreter with torch_tpu")
    asked = parser.parse_args(words)
    agree = 0
    for name in asked.only:
        line, note = measure(name, asked.python)
        append(SUBJECT, line, note=note)
        print(*line.values(), flush=True)
        agree += line["result"] == "agree"
    print(f"{agree} of {len(asked.only)} agree")
    return 0


def measure(name: str, python: str) -> tuple[dict[str, Any], str]:
    """Return the figures of a type, and what its side on torch_tpu ran on."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="parity-torch-tpu-") as scratch:
        folder, inputs = saved(name, Path(scratch))
        command = [sys.executable, "-m", "migrate", "parity", str(folder), f"tpu:{folder}"]
        command += ["--inputs", str(inputs), "--python-b", python, "--gradients", "--json"]
        ran = subprocess.run(
            [*command, "--timeout", str(SECONDS)], capture_output=True, text=True, check=False
        )
    line = {"type": name, "result": "", "gradients": "", "torch": "", "torch_tpu": "", "limit": ""}
    note = ""
    if ran.returncode in (0, 1) and ran.stdout:
        answer = json.loads(ran.stdout)
        line |= figures(answer)
        note = "torch_tpu: " + ", ".join(
            f"{k} {v}" for k, v in answer["sides"]["b"]["versions"].items()
        )
    else:
        line["result"] = refusal(ran.stderr)
    return line | {"seconds": f"{time.monotonic() - began:.0f}"}, note


def saved(name: str, scratch: Path) -> tuple[Path, Path]:
    """Write a type's model as a folder of transformers, and its inputs."""
    from safetensors.torch import save_file

    from benchmarks.zoo_models.huggingface import build

    model, inputs = build(name)
    folder = scratch / name
    model.save_pretrained(folder)
    file = scratch / "inputs.safetensors"
    save_file({key: value.contiguous() for key, value in inputs.items()}, file)
    return folder, file


def figures(answer: dict[str, Any]) -> dict[str, str]:
    """Figures of a finished comparison."""
    sections = {section["name"]: section for section in answer["sections"]}
    outputs = [
        {side: float(check[side]) for side in ("a", "b", "limit")}
        for check in sections["outputs"]["checks"]
        if check["a"] is not None
    ]
    worst = max(outputs, key=lambda check: check["b"] / check["limit"])
    gradients = sections.get("gradients", {"checks": []})["checks"]
    passed = sum(check["passed"] for check in gradients)
    if answer["verdict"] == "match":
        result = "agree"
    elif answer["first"]:
        result = f"{answer['verdict']}: {answer['first']['name']}"
    else:
        failed = [key for key, value in sections.items() if not value["passed"]]
        result = f"{answer['verdict']}: {', '.join(failed)}"
    return {
        "result": result,
        "gradients": f"{passed} of {len(gradients)}",
        "torch": f"{worst['a']:.1e}",
        "torch_tpu": f"{worst['b']:.1e}",
        "limit": f"{worst['limit']:.1e}",
    }


def refusal(said: str) -> str:
    """Why there is no comparison: the operators that are missing, or the line of the command."""
    if missing := MISSING.search(said):
        return f"not implemented: {missing['operators']}"
    lines = [line for line in said.splitlines() if line.startswith("migrate: ")]
    last = (lines or said.splitlines() or ["ended without a word"])[-1].removeprefix("migrate: ")
    # The folder is temporary.
    return re.sub(r"side B \(tpu:[^)]*\): ", "torch_tpu: ", last).partition("; ")[0]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
