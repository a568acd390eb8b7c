"""CPU backend: one process per rank, collectives over gloo."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from shims.api_errors import MemoryUnknownError
from shims.backends import processes
from shims.backends.base import Backend, MemoryUse


class CpuBackend(Backend):
    """CPU backend."""

    name = "cpu"
    group_backend = "gloo"

    def launch(self, fn: Callable[..., object], args: tuple[Any, ...], ranks: int | None) -> None:
        """Start the ranks here, unless a launcher has started them."""
        if processes.in_environment():
            processes.require_same(ranks, self.world_size())
            processes.run(fn, int(os.environ["RANK"]), args)
            return
        count = processes.requested_ranks(ranks) or 1
        if count == 1:
            processes.run(fn, 0, args, processes.single_rank_variables())
        else:
            processes.spawn(fn, args, count)

    def device(self) -> torch.device:
        """Return the CPU."""
        return torch.device("cpu")

    def synchronize(self) -> None:
        """Return at once: the CPU computes during the call."""

    def memory(self) -> MemoryUse:
        """Raise: torch does not count the host memory of tensors."""
        raise MemoryUnknownError(
            "shims.memory() has no answer on the CPU: torch does not count its host memory",
            "ask on a CUDA device or a TPU, or catch MemoryUnknownError",
        )

    def device_rng_state(self) -> None:
        """Return None: there is only the host's generator."""

    def set_device_rng_state(self, state: Any) -> None:
        """Do nothing: there is only the host's generator."""

    def all_to_all(
        self,
        outputs: list[torch.Tensor],
        inputs: list[torch.Tensor],
        group: Any,
        async_op: bool,
    ) -> Any:
        """Exchange in one flat tensor, because gloo has no all_to_all of lists."""
        received = torch.cat([output.reshape(-1) for output in outputs])
        work = dist.all_to_all_single(
            received,
            torch.cat([value.reshape(-1) for value in inputs]),
            [output.numel() for output in outputs],
            [value.numel() for value in inputs],
            group,
            async_op,
        )

        def hand_out() -> None:
            with torch.no_grad():
                parts = received.split([output.numel() for output in outputs])
                for output, part in zip(outputs, parts, strict=True):
                    output.copy_(part.view_as(output))

        if work is None:
            hand_out()
            return None
        return processes.WorkWithFinish(work, hand_out)
