"""What all replicas decide together, over gloo, without touching their devices."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from shims._shared import gloo_output, gloo_threads, world
from shims.errors import ShimError


class NoProcessGroupError(ShimError):
    """Several replicas are to act together, and torch.distributed is not initialised.

    Remedy: call `shims.init_distributed()` (or `init_process_group`) before it.
    """


class Agreement:
    """The replicas' group for decisions; without others, each decision is this replica's own.

    Raises:
        NoProcessGroupError: there are others, and no torch.distributed to reach them by.
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
        # A group of its own, so that its messages never mix with the program's, on the CPU, so
        # that a decision neither waits for the device nor becomes part of a graph.
        gloo_threads.let_go_at_exit()
        gloo_output.keep_off_stdout()
        self._group = dist.new_group(backend="gloo")

    def poll(self, wish: bool) -> bool:
        """Whether any replica wished it at the poll before this one; the same answer on all.

        The messages of a poll travel while the next step runs: the answer comes one poll later and
        costs no waiting. Every replica must poll equally often.
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
        """Wait for the last poll, so that none is under way when the program ends."""
        if self._polling is not None:
            self._polling[1].wait()
            self._polling = None

    def smallest(self, number: int) -> int:
        """The smallest of the replicas' numbers."""
        if self._group is None:
            return number
        value = torch.tensor(number)
        dist.all_reduce(value, dist.ReduceOp.MIN, group=self._group)
        return int(value.item())

    def of_rank_0(self, number: int) -> int:
        """The number that rank 0 has."""
        if self._group is None:
            return number
        value = torch.tensor(number)
        dist.broadcast(value, 0, group=self._group)
        return int(value.item())

    def gathered(self, data: torch.Tensor) -> list[torch.Tensor]:
        """Each replica's uint8 vector, of any length, in the order of ranks; on every replica."""
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
        """Leave the group; every replica closes."""
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
            self._group = None
