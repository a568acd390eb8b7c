"""TPUs through torch_tpu, PyTorch's native "tpu" device (torch 2.11 and later): a first version.

Written against torch_tpu 0.2.0, which asks for torch.accelerator's names where there are such. It has
not run on a TPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch_tpu  # type: ignore[import-not-found]  # noqa: F401 - registers torch.tpu

from shims.api_errors import LaunchError, MemoryUnknownError, UnsupportedError
from shims.backends import processes
from shims.backends.base import Backend, MemoryUse
from shims.backends.unneeded_scaler import UnneededScaler


class TpuBackend(Backend):
    """The TPUs of this machine, one rank for each."""

    name = "tpu"
    group_backend = "tpu_dist"

    def launch(self, fn: Callable[..., object], args: tuple[Any, ...], ranks: int | None) -> None:
        """Start a rank for each TPU here, unless a launcher has."""
        if processes.in_environment():
            processes.require_same(ranks, self.world_size())
            processes.run(fn, int(os.environ["RANK"]), args)
            return
        devices = torch.accelerator.device_count()
        count = processes.wanted(ranks) or devices
        if count > devices:
            raise LaunchError(
                f"{count} ranks asked for with {devices} TPUs", "one rank for each TPU"
            )
        # Which chip talks to which is decided before the ranks start.
        torch.tpu.distributed.set_tpu_launch_env(nproc_per_node=count)
        processes.spawn(fn, args, count)

    def init_distributed(self, timeout: timedelta | None) -> None:
        """Make this rank's TPU the current one, then join."""
        torch.accelerator.set_device_index(self.local_rank())
        super().init_distributed(timeout)

    def device(self) -> torch.device:
        """The TPU whose number is the local rank."""
        return torch.device("tpu", self.local_rank())

    def autocast(self, dtype: torch.dtype, enabled: bool, cache_enabled: bool | None) -> Any:
        """bfloat16, as on XLA."""
        if enabled and dtype not in (torch.bfloat16, torch.float32):
            raise UnsupportedError(
                f"shims.autocast(dtype={dtype}) on a TPU", "a TPU has torch.bfloat16 only"
            )
        return super().autocast(dtype, enabled, cache_enabled)

    def grad_scaler(self, options: dict[str, Any]) -> Any:
        """bfloat16 has the exponents of float32: nothing is to be scaled."""
        return UnneededScaler(options)

    def synchronize(self) -> None:
        """Wait for this rank's TPU."""
        torch.accelerator.synchronize()

    def memory(self) -> MemoryUse:
        """Unknown: torch.tpu 0.2 has no public name for it."""
        raise MemoryUnknownError(
            "shims.memory() has no answer: torch.tpu does not say how much memory is in use",
            "catch MemoryUnknownError",
        )

    def device_rng_state(self) -> torch.Tensor:
        """Of this rank's TPU."""
        return torch.tpu.default_generators[self.local_rank()].get_state()

    def set_device_rng_state(self, state: Any) -> None:
        """Of this rank's TPU."""
        torch.tpu.default_generators[self.local_rank()].set_state(state)
