"""Decisions that all replicas make together, over gloo, without touching their devices."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from shims._shared import gloo_output, gloo_threads, world
from shims.errors import ShimError


class NoProcessGroupError(ShimError):
    """Several replicas must act together, but torch.distributed is not initialized.

    Remedy: call `shims.init_distributed()` (or `init_process_group`) first.
    """


class Agreement:
    """Process group for decisions of all replicas. A single replica decides alone.

    Raises:
        NoProcessGroupError: there are several replicas, and torch.distributed is not initialized.
    """

    def __init__(self) -> None:
        self.rank, self.size = world.rank_and_size()
        self._group: Any = None
        self._polling: tuple[torch.Tensor, Any] | None = None
        if self.size == 1:
            return
        if not dist.is_initialized():
            raise NoProcessGroupError(
                f"{self.size} replicas and no process group", "call shims.init_distributed() first"
            )
        # A separate CPU group: its messages never mix with the program's, and a decision neither
        # waits for the device nor becomes part of a graph.
        gloo_threads.let_go_at_exit()
        gloo_output.keep_off_stdout()
        self._group = dist.new_group(backend="gloo")

    def poll(self, wish: bool) -> bool:
        """Return whether any replica wished it at the previous poll; all replicas get the same answer.

        The messages travel while the next step runs. The answer comes one poll later and costs no
        waiting. Every replica must poll equally often.
        """
        if self._group is None:
            return wish
        before, self._polling = self._polling, None
        flag = torch.tensor(int(wish))
        work = dist.all_reduce(flag, dist.ReduceOp.MAX, group=self._group, async_op=True)
        self._polling = (flag, work)
        if before is None:
            return False
        before[1].wait()
        return bool(before[0].item())

    def settle(self) -> None:
        """Wait for the last poll, so that no message is in flight when the program ends."""
        if self._polling is not None:
            self._polling[1].wait()
            self._polling = None

    def smallest(self, number: int) -> int:
        """Return the smallest of the replicas' numbers."""
        if self._group is None:
            return number
        value = torch.tensor(number)
        dist.all_reduce(value, dist.ReduceOp.MIN, group=self._group)
        return int(value.item())

    def of_rank_0(self, number: int) -> int:
        """Return the number of rank 0."""
        if self._group is None:
            return number
        value = torch.tensor(number)
        dist.broadcast(value, 0, group=self._group)
        return int(value.item())

    def gathered(self, data: torch.Tensor) -> list[torch.Tensor]:
        """Return each replica's uint8 vector (of any length) in rank order, on every replica."""
        if self._group is None:
            return [data]
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([data.numel()]), group=self._group)
        longest = max(int(size) for size in sizes)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: data.numel()] = data
        parts = [torch.zeros_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded, group=self._group)
        return [part[: int(size)].clone() for part, size in zip(parts, sizes, strict=True)]

    def close(self) -> None:
        """Leave the group. Every replica must close it."""
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
            self._group = None
