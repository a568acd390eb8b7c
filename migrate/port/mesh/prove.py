"""Compare a port on meshes of eight simulated devices with one device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from migrate.port.mesh.results import MeshRun
from migrate.port.mesh.rules import PartitionRule

DEVICES = 8
_FLAGS = (
    f"--xla_force_host_platform_device_count={DEVICES}",
    # Only the machine code of the CPU: it runs once.
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_backend_optimization_level=0",
)
Sizes = dict[str, int]


def meshes(rules: Sequence[PartitionRule], sizes: Mapping[str, int]) -> list[Sizes]:
    """Meshes of eight devices: each axis alone as far as it divides the weights, and mixed ones.

    Args:
        rules: the rules.
        sizes: largest power of two that divides all the axes of weights that lie along a mesh axis.
    """
    used = {axis for rule in rules for axis in rule.spec if axis}
    candidates: list[Sizes] = [{"data": DEVICES}]
    for axis in ("fsdp", "tensor", "expert"):
        most = min(DEVICES, sizes.get(axis, 1))
        if axis in used and most > 1:
            candidates.append(
                {"data": DEVICES // most, axis: most} if most < DEVICES else {axis: most}
            )
    two = [axis for axis in ("fsdp", "tensor", "expert") if axis in used and sizes.get(axis, 1) > 1]
    if len(two) > 1:
        candidates.append({"data": 2, **dict.fromkeys(two[:2], 2)})
    if len(two) > 2:
        candidates.append(dict.fromkeys(two, 2))
    return candidates


def batch_of(examples: Sequence[Mapping[str, Any]], whole: Sequence[str]) -> dict[str, Any]:
    """Inputs with a row for each device, from examples of one shape."""
    first = examples[0]
    alike = [
        each for each in examples if all(each[name].shape == first[name].shape for name in first)
    ]
    rows = {}
    for name, array in first.items():
        if name in whole or not array.ndim or array.shape[0] == 1:
            rows[name] = array
            continue
        stacked = np.concatenate([each[name] for each in alike])
        count = -(-DEVICES // len(stacked))
        rows[name] = np.concatenate([stacked] * count)[:DEVICES]
    return rows


def prove_meshes(
    folder: Path,
    params: Path | None,
    inputs: Mapping[str, Any],
    streams: Sequence[str],
    wanted: Sequence[Sizes],
    work: Path,
    timeout: float,
) -> tuple[MeshRun, ...]:
    """Run the port on each mesh, in a process of its own.

    Args:
        folder: folder of the port.
        params: its weights; None: those of `init`.
        inputs: what it is given.
        streams: streams of random numbers that it draws from.
        wanted: the meshes.
        work: folder for intermediate files.
        timeout: seconds for the process.
    """
    from safetensors.numpy import save_file

    work.mkdir(parents=True, exist_ok=True)
    narrow = {"int64": "int32", "float64": "float32", "uint64": "uint32"}
    arrays = {
        name: np.ascontiguousarray(array.astype(narrow.get(array.dtype.name, array.dtype.name)))
        for name, array in inputs.items()
    }
    save_file(arrays, work / "inputs.safetensors")
    request, answer = work / "request.json", work / "answer.json"
    asked = {
        "folder": str(folder),
        "params": str(params) if params else "",
        "inputs": str(work / "inputs.safetensors"),
        "streams": list(streams),
        "meshes": list(wanted),
        "answer": str(answer),
    }
    request.write_text(json.dumps(asked))
    root = str(Path(__file__).parents[3])
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": " ".join([os.environ.get("XLA_FLAGS", ""), *_FLAGS]).strip(),
        "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
    }
    names = [shown(sizes) for sizes in wanted]
    command = [sys.executable, "-m", "migrate.port.mesh.child", str(request)]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return tuple(MeshRun(name, error=f"no answer within {timeout:g} s") for name in names)
    if not answer.exists():
        last = done.stderr.strip().splitlines()[-1:] or ["nothing was printed"]
        error = f"its process ended with {done.returncode}: {last[0]}"
        return tuple(MeshRun(name, error=error) for name in names)
    facts = json.loads(answer.read_text())
    if isinstance(facts, dict):
        return tuple(MeshRun(name, error=facts["error"]) for name in names)
    return tuple(MeshRun(name, **fact) for name, fact in zip(names, facts, strict=True))


def shown(sizes: Mapping[str, int]) -> str:
    """A mesh in words: "fsdp=4 tensor=2"."""
    return " ".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1) or "data=1"
