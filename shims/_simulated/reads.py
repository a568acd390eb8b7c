"""Results of collectives that one replica reads before the end of the step, and another does not.

On a TPU a collective runs with the graph that it is part of: at the next sync, or when the program reads
what depends on it (`.item()`, `print`, `xm.save`). Where only some replicas read, their graph waits for
the others, which run another one. In the simulation every collective has run already, so that nothing
would wait: here such reads are noted, and compared at the next collective.

What depends on a result is asked of torch_xla: the inputs of the graph that is about to run. A value
that another collective came after is computed already, and no longer known to depend.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch_xla

from shims._simulated import calls

# Methods that bring a tensor's value to the host. `print` and `f"{tensor}"` use `to`, torch.save `cpu`.
_READING = ("item", "tolist", "cpu", "to", "__bool__", "__float__", "__int__", "__index__")

_REAL = (torch.Tensor, torch.nn.Parameter)
READ_REMEDY = (
    "on a TPU their graphs differ, and the collective in them hangs: "
    "call torch_xla.sync() on all replicas first"
)


class Reads:
    """The reads of one replica.

    Args:
        step: tells the number of steps before.

    Attributes:
        pending: the ids of torch_xla's data that collectives brought since the last sync.
    """

    def __init__(self, step: Callable[[], int]) -> None:
        self._step = step
        self.pending: set[int] = set()
        self._noting = False
        self._digest = ""
        self._said = ""

    def bring(self, results: Sequence[torch.Tensor]) -> None:
        """Take note of the results of a collective, on the device."""
        self.pending.update(torch_xla._XLAC._xla_get_tensor_id(result) for result in results)

    def synchronised(self) -> None:
        """The program's sync computes all that is pending, on this replica."""
        if self.pending:
            self.pending.clear()
            self._note("syncs", "sync")

    def read(self, tensors: Sequence[torch.Tensor], how: str) -> None:
        """Take note of a read, if it needs what a collective brought."""
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
        """What was read since the last collective: a digest to compare, and the last read in words."""
        return self._digest, self._said

    def begin(self) -> None:
        """A collective begins: what was read before it has been compared."""
        self._digest = self._said = ""

    def _needs_a_result(self, tensor: torch.Tensor) -> bool:
        c_layer = torch_xla._XLAC
        needed, _ = c_layer._get_tensors_xla_device_data_node([tensor])
        if self.pending.isdisjoint(needed):
            return False
        if not any(c_layer._check_tensor_need_materialization([tensor])):
            # It is the result itself, which this read computes: the next one finds it.
            self.pending.difference_update(needed)
        return True

    def _note(self, what: str, kind: str) -> None:
        self._digest = f"{calls.checksum(self._digest + kind):08x}"
        self._said = f"{what}{calls.at(calls.caller())} (step {self._step()})"


def watch_reads(reads: Reads) -> None:
    """Let `reads` know of each value of a tensor that Python asks for."""
    for name in _READING:
        setattr(torch.Tensor, name, _noted(getattr(torch.Tensor, name), name, reads))
    c_layer = torch_xla._XLAC
    # xm.save and xm.mesh_reduce, in every replica that calls them.
    compute = c_layer._xla_sync_multi

    def sync_multi(tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        reads.read(tensors, "xm.save")
        return compute(tensors, *args, **kwargs)

    c_layer._xla_sync_multi = sync_multi


def _noted(method: Any, name: str, reads: Reads) -> Any:
    @functools.wraps(method)
    def noted(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        # Not the tensors of a trace, which have no data.
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
