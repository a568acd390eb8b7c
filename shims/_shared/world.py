"""Rank and size of the world, read without starting a runtime or a process group."""

from __future__ import annotations

import sys
import warnings

import torch.distributed as dist


def rank_and_size() -> tuple[int, int]:
    """Return the global rank and the number of replicas; (0, 1) for a single replica.

    They come from torch.distributed once it is initialized, otherwise from torch_xla once its
    runtime runs. Asking torch_xla earlier would start the runtime, and `torch_xla.launch` fails
    after that.
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
    # While torch_xla is being imported, it has no C layer yet.
    c_layer = getattr(torch_xla, "_XLAC", None)
    return c_layer is not None and c_layer._xla_runtime_is_initialized()


def torch_tpu_runs() -> bool:
    """Whether this process has opened a TPU with torch_tpu. Nothing is opened by asking."""
    # torch_tpu registers torch.tpu only if it was loaded.
    device = sys.modules.get("torch.tpu")
    if device is None:
        return False
    with warnings.catch_warnings():
        # torch_tpu calls the name experimental.
        warnings.simplefilter("ignore")
        return bool(device.is_initialized())


def run_pending() -> None:
    """Run the pending XLA graph with its collectives. Either every replica calls this, or none.

    This does not end a step. Ending a step would run the closures of an unfinished step and advance
    the random state. A run that writes checkpoints would then draw other numbers than a run
    without.
    """
    if xla_runs():
        c_layer = sys.modules["torch_xla"]._XLAC
        c_layer._xla_sync_live_tensors("", [], wait=False)
