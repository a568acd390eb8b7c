"""Detection of collective results that only some replicas read before the end of the step.

On a TPU a collective runs with its graph: at the next sync, or when the program reads a dependent
value (`.item()`, `print`, `xm.save`). If only some replicas read, their graph waits for the others,
which run a different graph. The simulation runs every collective immediately, so nothing would
wait. Such reads are recorded here and compared at the next collective.

torch_xla tells which values depend on a result: they are the inputs of the graph that is about to
run. After the next collective a value is already computed and no longer known to depend.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch_xla

from shims._simulated import calls

# Methods that copy a tensor's value to the host. `print` and `f"{tensor}"` use `to`, torch.save
# uses `cpu`.
_READING = ("item", "tolist", "cpu", "to", "__bool__", "__float__", "__int__", "__index__")

_REAL = (torch.Tensor, torch.nn.Parameter)
# First reads since a collective that a replica keeps, and sends to the others, in words; all are in a digest.
_MOST_NOTES = 4
READ_REMEDY = (
    "on a TPU their graphs differ, and the collective in them hangs: "
    "call torch_xla.sync() on all replicas first"
)


class Reads:
    """Reads of one replica.

    Args:
        step: returns the number of steps that have ended.

    Attributes:
        pending: ids of the torch_xla data that collectives returned since the last sync.
    """

    def __init__(self, step: Callable[[], int]) -> None:
        self._step = step
        self.pending: set[int] = set()
        self._noting = False
        self._digest = ""
        self._notes: list[str] = []

    def record_results(self, results: Sequence[torch.Tensor]) -> None:
        """Record the device tensors returned by a collective."""
        self.pending.update(torch_xla._XLAC._xla_get_tensor_id(result) for result in results)

    def synchronized(self) -> None:
        """Forget pending results: the program's sync computes everything on this replica."""
        if self.pending:
            self.pending.clear()
            self._note("syncs", "sync")

    def read(self, tensors: Sequence[torch.Tensor], how: str) -> None:
        """Record a read if it needs a collective's result."""
        if self._noting or not self.pending or calls.in_a_recorder():
            return
        self._noting = True
        try:
            needing = [tensor for tensor in tensors if self._needs_a_result(tensor)]
        finally:
            self._noting = False
        if needing:
            shapes = ", ".join(str(list(tensor.shape)) for tensor in needing)
            self._note(f"reads the result of a collective by {how}", shapes)

    def since(self) -> tuple[str, str]:
        """Return the reads since the last collective: a digest to compare, and the first reads in words."""
        return self._digest, "\n".join(self._notes)

    def begin(self) -> None:
        """Start a new collective: the reads before it have been compared."""
        self._digest, self._notes = "", []

    def _needs_a_result(self, tensor: torch.Tensor) -> bool:
        c_layer = torch_xla._XLAC
        needed, _ = c_layer._get_tensors_xla_device_data_node([tensor])
        if self.pending.isdisjoint(needed):
            return False
        if not any(c_layer._check_tensor_need_materialization([tensor])):
            # The tensor is the result itself, which this read computes: the next read finds it.
            self.pending.difference_update(needed)
        return True

    def _note(self, what: str, kind: str) -> None:
        self._digest = f"{calls.checksum(self._digest + kind):08x}"
        if len(self._notes) < _MOST_NOTES:
            said = f"{what}{calls.at(calls.caller())} (step {self._step()})"
            self._notes.append(f"{calls.checksum(kind):08x} {said}")


def watch_reads(reads: Reads) -> None:
    """Report to `reads` every tensor value that Python reads."""
    for name in _READING:
        setattr(torch.Tensor, name, _noted(getattr(torch.Tensor, name), name, reads))
    c_layer = torch_xla._XLAC
    # xm.save and xm.mesh_reduce, on every replica that calls them.
    compute = c_layer._xla_sync_multi

    def sync_multi(tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        reads.read(tensors, "xm.save")
        return compute(tensors, *args, **kwargs)

    c_layer._xla_sync_multi = sync_multi


def _noted(method: Any, name: str, reads: Reads) -> Any:
    @functools.wraps(method)
    def noted(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        # A tensor of a trace has no data.
        real = reads.pending and type(tensor) in _REAL and tensor.device.type == "xla"
        if real and _is_read(name, args, kwargs):
            reads.read([tensor], name)
        return method(tensor, *args, **kwargs)

    return noted


def _is_read(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    if name != "to":
        return True
    target = kwargs.get("device", args[0] if args else None)
    if isinstance(target, torch.Tensor):
        return target.device.type == "cpu"
    return str(target).partition(":")[0] == "cpu"
