"""Collectives of unedited CUDA code on XLA, run on all replicas when they are called.

A torch_xla collective runs with its graph: at the next sync, or when a replica reads a dependent
value. CUDA code reads under `if rank == 0:`, because its collectives have already run on every
rank. On a TPU that replica's graph would wait for the others, which run another graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

from shims._shared import wide as _wide
from shims._shared import world

# torch's own answer; the program reads the name that it used.
_backend = dist.get_backend

# In addition to those that take a reduction (`shims.patches.ranks.averages`).
_MOVING = (
    "broadcast",
    "all_gather",
    "all_gather_into_tensor",
    "all_to_all",
    "all_to_all_single",
    "gather",
    "scatter",
)


def answers() -> Iterator[tuple[str, Callable[..., Any], str]]:
    """Yield the collectives that only move values."""
    for name in _MOVING:
        yield name, executed(getattr(dist, name)), "as it is, and run at once on all replicas"


def wide(all_reduce: Callable[..., Any]) -> Callable[..., Any]:
    """Return `all_reduce` with support for 64-bit tensors, which the TPU's compiler does not reduce."""

    @functools.wraps(all_reduce)
    def reduced(
        tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False
    ) -> Any:
        if not _wide.is_wide(tensor, op) or _backend(group) != "xla":
            return all_reduce(tensor, op, group, async_op)
        _wide.all_reduce(tensor, op, group)
        return _wide.CompletedWork() if async_op else None

    return reduced


def executed(collective: Callable[..., Any]) -> Callable[..., Any]:
    """Return the collective followed by a run of the pending graph; over gloo it is unchanged."""

    @functools.wraps(collective)
    def run(*args: Any, **kwargs: Any) -> Any:
        work = collective(*args, **kwargs)
        groups = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, dist.ProcessGroup)]
        if _backend(groups[0] if groups else None) == "xla":
            world.run_pending()
        return work

    return run
