"""CUDA backend: one rank per GPU, collectives over NCCL."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from shims.backends import gpus, processes
from shims.backends.base import Backend, MemoryUse


class CudaBackend(Backend):
    """GPUs of this machine, or of all machines under torchrun."""

    name = "cuda"
    group_backend = "nccl"
    averages = True
    syncs_batch_norm = True

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self._share = gpus.shared()
        if self._share:
            self.group_backend = "gloo"
            self.averages = False

    def launch(self, fn: Callable[..., object], args: tuple[Any, ...], ranks: int | None) -> None:
        """Start one rank per GPU, unless a launcher has started the ranks."""
        if processes.in_environment():
            processes.require_same(ranks, self.world_size())
            processes.run(fn, int(os.environ["RANK"]), args)
            return
        here = torch.cuda.device_count()
        count = processes.requested_ranks(ranks) or here
        gpus.require(count, here, self._share)
        if count == 1:
            processes.run(fn, 0, args, processes.single_rank_variables())
        else:
            processes.spawn(fn, args, count)

    def init_distributed(self, timeout: timedelta | None) -> None:
        """Make this rank's GPU the current device, then join."""
        # NCCL uses the current device: without this, all ranks meet on GPU 0.
        torch.cuda.set_device(self.device())
        super().init_distributed(timeout)

    def device(self) -> torch.device:
        """Return the GPU with the number of the local rank. Ranks that share GPUs are distributed evenly."""
        number = gpus.of_rank(self.local_rank(), torch.cuda.device_count(), self._share)
        return torch.device("cuda", number)

    def ddp(self, model: torch.nn.Module, options: dict[str, Any]) -> DistributedDataParallel:
        """Wrap a model in DDP on this rank's GPU."""
        self.require_on_device(model)
        return DistributedDataParallel(model, device_ids=[self.device().index], **options)

    def pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy to page-locked memory, from where a copy to the GPU is asynchronous."""
        return tensor.pin_memory()

    def synchronize(self) -> None:
        """Wait for this rank's GPU."""
        torch.cuda.synchronize(self.device())

    def memory(self) -> MemoryUse:
        """Return the memory held by torch's allocator and the memory of the GPU."""
        device = self.device()
        return MemoryUse(
            used=torch.cuda.memory_allocated(device),
            peak=torch.cuda.max_memory_allocated(device),
            limit=torch.cuda.mem_get_info(device)[1],
        )

    def generator(self) -> torch.Generator:
        """Return the generator of this rank's GPU."""
        return torch.Generator(self.device())

    def device_rng_state(self) -> torch.Tensor:
        """Return the generator state of this rank's GPU."""
        return torch.cuda.get_rng_state(self.device())

    def set_device_rng_state(self, state: Any) -> None:
        """Restore the generator state of this rank's GPU."""
        torch.cuda.set_rng_state(state, self.device())

    def barrier(self, group: Any) -> None:
        """Pass the device, which NCCL would otherwise guess from the rank."""
        if dist.get_backend(group) == "nccl":
            dist.barrier(group, device_ids=[self.device().index])
        else:
            dist.barrier(group)
