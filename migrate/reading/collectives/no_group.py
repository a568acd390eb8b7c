"""Calls of torch.distributed without a process group: Accelerate creates none on XLA."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.libraries import ACCELERATE_STATES
from migrate.syntax.tree import nodes_of

if TYPE_CHECKING:
    from migrate.reading.script import Script

HOMES = ("torch.distributed.", "torch.nn.parallel.")
# What to use instead, by the last part of the name of what is called.
INSTEAD = {
    **dict.fromkeys(("get_rank",), "accelerator.process_index"),
    **dict.fromkeys(("get_world_size",), "accelerator.num_processes"),
    **dict.fromkeys(("barrier", "monitored_barrier"), "accelerator.wait_for_everyone()"),
    **dict.fromkeys(("all_reduce", "reduce"), "accelerator.reduce(x)"),
    # Accelerate has neither function: each process takes its own part of the full list.
    "reduce_scatter": "accelerator.reduce(torch.stack(parts))[accelerator.process_index]",
    **dict.fromkeys(
        ("reduce_scatter_tensor", "_reduce_scatter_base"),
        "accelerator.reduce(x).chunk(accelerator.num_processes)[accelerator.process_index]",
    ),
    **dict.fromkeys(
        ("all_gather", "all_gather_into_tensor", "gather"),
        "accelerator.gather(x)",
    ),
    **dict.fromkeys(
        ("all_gather_object", "gather_object"),
        "accelerate.utils.gather_object(x)",
    ),
    **dict.fromkeys(("broadcast",), "accelerate.utils.broadcast(x)"),
    "broadcast_object_list": "accelerate.utils.broadcast_object_list(x)",
    # The list has the same length in every process: `objects`, or one None for each process.
    "scatter_object_list": "accelerate.utils.broadcast_object_list(objects)[accelerator.process_index]",
    **dict.fromkeys(("DistributedDataParallel",), "accelerator.prepare(model)"),
}
# Tests that distinguish a run with a process group from one without.
ASKS = frozenset({"distributed_type", "is_initialized"})


@lru_cache(maxsize=4)
def calls_without_group(script: Script) -> tuple[cst.Call, ...]:
    """Return the calls of a script that raise on XLA because no process group exists there."""
    calls = script.calls
    if calls.joins_group:
        return ()
    if not any(
        script.qualified_name(call.func) in ACCELERATE_STATES for call in script.all_of(cst.Call)
    ):
        return ()
    return tuple(
        call
        for call in script.all_of(cst.Call)
        if instead_of(call, script) and not _is_asked_first(call, script)
    )


def instead_of(call: cst.Call, script: Script) -> str:
    """Return Accelerate's counterpart of a torch.distributed call; empty for any other call."""
    name = script.qualified_name(call.func) or ""
    return INSTEAD.get(name.rpartition(".")[2], "") if name.startswith(HOMES) else ""


def _is_asked_first(call: cst.Call, script: Script) -> bool:
    """Whether the function or module around the call asks whether there is a process group."""
    for above in script.ancestors(call):
        if isinstance(above, cst.FunctionDef):
            return _asks(above.body)
        if isinstance(above, cst.If | cst.IfExp | cst.BooleanOperation) and _asks(above):
            return True
    return False


def _asks(node: cst.CSTNode) -> bool:
    return any(name.value in ASKS for name in nodes_of(node, cst.Name))
