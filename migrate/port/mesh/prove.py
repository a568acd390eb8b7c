"""Compare a port on meshes of eight simulated devices with one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from migrate.port.child import answer_of
from migrate.port.dtypes import narrow
from migrate.port.mesh.results import MeshRun
from migrate.port.mesh.rules import PartitionRule
from migrate.port.proof import alike

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
    rows = {}
    for name, array in first.items():
        if name in whole or not array.ndim or array.shape[0] == 1:
            rows[name] = array
            continue
        stacked = np.concatenate([example[name] for example in alike(examples)])
        count = -(-DEVICES // len(stacked))
        rows[name] = np.concatenate([stacked] * count)[:DEVICES]
    return rows


def prove_meshes(
    folder: Path,
    params: Path | None,
    inputs: Mapping[str, Any],
    streams: Sequence[str],
    requested: Sequence[Sizes],
    work: Path,
    timeout: float,
) -> tuple[MeshRun, ...]:
    """Run the port on each mesh, in a process of its own.

    Args:
        folder: folder of the port.
        params: its weights; None: those of `init`.
        inputs: input name → array.
        streams: random streams that the model draws from.
        requested: axis → devices of each mesh.
        work: folder for intermediate files.
        timeout: seconds for the process.
    """
    from safetensors.numpy import save_file

    work.mkdir(parents=True, exist_ok=True)
    file = work / "inputs.safetensors"
    save_file({name: np.ascontiguousarray(narrow(array)) for name, array in inputs.items()}, file)
    request = {
        "folder": str(folder),
        "params": str(params) if params else "",
        "inputs": str(file),
        "streams": list(streams),
        "meshes": list(requested),
    }
    names = [shown(sizes) for sizes in requested]
    facts = answer_of("migrate.port.mesh.child", request, work, timeout, _FLAGS)
    if isinstance(facts, dict):
        return tuple(MeshRun(name, error=facts["error"]) for name in names)
    return tuple(MeshRun(name, **fact) for name, fact in zip(names, facts, strict=True))


def shown(sizes: Mapping[str, int]) -> str:
    """A mesh in words: "fsdp=4 tensor=2"."""
    return " ".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1) or "data=1"
