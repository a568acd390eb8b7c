"""The section of a port's README on its device mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from migrate.port.mesh.results import FACTOR, WIDE, MeshRun

if TYPE_CHECKING:
    from migrate.port.mesh.derive import Partition

_USE = """\
`sharding.py` has the partition rules. Edit them as you like; `partition_specs` checks them.

```python
import jax
import optax
from {name} import build, load_params, make_mesh, shard_batch, shard_params, shardings

mesh = make_mesh(fsdp=len(jax.devices()))
model, optimizer = build(), optax.adamw(1e-3)
variables = shard_params(load_params(), mesh)
abstract = jax.eval_shape(optimizer.init, variables["params"])
state = jax.jit(optimizer.init, out_shardings=shardings(abstract, mesh))(variables["params"])
with jax.set_mesh(mesh):
    outputs = jax.jit(model.apply)(variables, **shard_batch(inputs, mesh))
```"""
_BOUND = (
    "Outputs and gradients on a mesh are equal to those on one device if their error against float64 is at "
    "most {factor:g} times the error of one device. A mesh computes the same float32 terms, and sums them in "
    "another order. The third column is the largest part of the allowed error. Exchanges are those of the "
    "forward pass and the gradients, as the CPU's compiler writes them."
)
_WIDE = (
    "A larger error is decided with the mesh in float64, where rounding is 2^-29 times as large: equal is an "
    "error of at most {wide:.1e} of the same limit."
)


def mesh_section(name: str, partition: Partition | None, runs: Sequence[MeshRun]) -> str:
    """The section; "" for a port without partition rules.

    Args:
        name: name of the package.
        partition: its rules.
        runs: the proof.
    """
    if partition is None:
        return ""
    limits = [
        f"`{axis}` at most {partition.divisors[axis]}"
        for axis in ("fsdp", "tensor", "expert")
        if axis in partition.divisors
    ]
    parts = ["## Device mesh", _USE.format(name=name)]
    if limits:
        parts.append(f"Powers of two that divide all weights: {', '.join(limits)}.")
    if not runs:
        return "\n\n".join([*parts, "**Not compared** on meshes."])
    rows = [
        f"| {run.mesh} | {run.verdict if run.matches else f'**{run.verdict}**'} | {part_text(run)} "
        f"| {exchanges_text(run)} | {bytes_text(run)} |"
        for run in runs
    ]
    head = "| mesh | outputs and gradients | part of the allowed error | exchanges | weights on a device |"
    table = "\n".join([head, "|---|---|---|---|---|", *rows])
    bounds = [_BOUND.format(factor=FACTOR)]
    if any(run.wide is not None for run in runs):
        bounds.append(_WIDE.format(wide=WIDE))
    return "\n\n".join([*parts, table, " ".join(bounds)])


def part_text(run: MeshRun) -> str:
    """The largest error of a run, divided by the allowed error; "" if nothing was compared."""
    if run.error or run.skipped:
        return ""
    text = f"{max(run.output, run.gradient):.2f}"
    return text if run.wide is None else f"{text}, in float64 {run.wide:.1e}"


def exchanges_text(run: MeshRun) -> str:
    """The number of exchanges by their kind."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(run.collectives.items()))


def bytes_text(run: MeshRun) -> str:
    """The part of the weights that is on each device."""
    return "" if run.error or run.skipped else f"{run.bytes:.0%}"
