"""Collectives of unedited CUDA code on XLA: run when they are called, on all replicas together.

A collective of torch_xla runs with the graph that it is in: at the next sync, or when a replica reads what
depends on it. CUDA code reads under `if rank == 0:`, as its collective has run by then on every rank; on a
TPU that one replica's graph would wait for the others, which run another one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

from shims._shared import wide as _wide
from shims._shared import world

# As torch answers; the program is told the name that it gave.
_backend = dist.get_backend

# Besides those that take a reduction (`shims.patches.ranks.averages`).
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
    """The collectives that only move values."""
    for name in _MOVING:
        yield name, executed(getattr(dist, name)), "as it is, and run at once on all replicas"


def wide(all_reduce: Callable[..., Any]) -> Callable[..., Any]:
    """`all_reduce`, also of the 64-bit tensors that the TPU's compiler does not reduce."""

    @functools.wraps(all_reduce)
    def reduced(
        tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False
    ) -> Any:
        if not _wide.is_wide(tensor, op) or _backend(group) != "xla":
            return all_reduce(tensor, op, group, async_op)
        _wide.all_reduce(tensor, op, group)
        return _wide.Done() if async_op else None

    return reduced


def executed(collective: Callable[..., Any]) -> Callable[..., Any]:
    """The collective, after which all that is pending is run; over gloo, as it is."""

    @functools.wraps(collective)
    def run(*args: Any, **kwargs: Any) -> Any:
        work = collective(*args, **kwargs)
        groups = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, dist.ProcessGroup)]
        if _backend(groups[0] if groups else None) == "xla":
            world.run_pending()
        return work

    return run
