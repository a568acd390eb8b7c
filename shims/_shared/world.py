"""This process's place among the replicas, asked without starting a runtime or a process group."""

from __future__ import annotations

import sys

import torch.distributed as dist


def rank_and_size() -> tuple[int, int]:
    """The global rank and the number of replicas; (0, 1) where there are no others.

    From torch.distributed once it is initialised, else from torch_xla once its runtime runs: to
    ask torch_xla earlier would start the runtime, and `torch_xla.launch` refuses to follow that.
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    if xla_runs():
        runtime = sys.modules.get("torch_xla.runtime")
        if runtime is not None:
            return runtime.global_ordinal(), runtime.world_size()
    return 0, 1


def xla_runs() -> bool:
    """Whether this process has started the XLA runtime, so that lazy tensors may be pending."""
    torch_xla = sys.modules.get("torch_xla")
    # While torch_xla is being imported it has no C layer yet.
    c_layer = getattr(torch_xla, "_XLAC", None)
    return c_layer is not None and c_layer._xla_runtime_is_initialized()


def run_pending() -> None:
    """Run what is pending on XLA, with the collectives in it; every replica calls it, or none.

    It is not a step's end: that would run the closures of a step that has not ended, and move the
    random state, so that a run that writes checkpoints would draw other numbers than one without.
    """
    if xla_runs():
        c_layer = sys.modules["torch_xla"]._XLAC
        c_layer._xla_sync_live_tensors("", [], wait=False)
