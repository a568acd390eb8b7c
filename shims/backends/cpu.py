"""The CPU: each rank a process, collectives over gloo."""

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
    """The CPU."""

    name = "cpu"
    group_backend = "gloo"

    def launch(self, fn: Callable[..., object], args: tuple[Any, ...], ranks: int | None) -> None:
        """Start the ranks here, unless a launcher has."""
        if processes.in_environment():
            processes.require_same(ranks, self.world_size())
            processes.run(fn, int(os.environ["RANK"]), args)
            return
        count = processes.wanted(ranks) or 1
        if count == 1:
            processes.run(fn, 0, args, processes.place_of_one())
        else:
            processes.spawn(fn, args, count)

    def device(self) -> torch.device:
        """The CPU has one."""
        return torch.device("cpu")

    def synchronize(self) -> None:
        """The CPU computes when it is called."""

    def memory(self) -> MemoryUse:
        """Unknown: torch does not count the host memory that its tensors hold."""
        raise MemoryUnknownError(
            "shims.memory() has no answer on the CPU: torch does not count its host memory",
            "ask on a CUDA device or a TPU, or catch MemoryUnknownError",
        )

    def device_rng_state(self) -> None:
        """The host's generator is the only one."""

    def set_device_rng_state(self, state: Any) -> None:
        """The host's generator is the only one."""

    def all_to_all(
        self,
        outputs: list[torch.Tensor],
        inputs: list[torch.Tensor],
        group: Any,
        async_op: bool,
    ) -> Any:
        """Exchange in one flat tensor: gloo has no all_to_all of lists."""
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
        return processes.Then(work, hand_out)
