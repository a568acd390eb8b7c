"""TPU backend through torch_tpu, PyTorch's native "tpu" device (torch 2.11 and later).

Written for torch_tpu 0.2.0, using torch.accelerator's names if they exist. On a machine without a TPU
the ranks are simulated (`shims.simulate_tpu`). Tested that way, not on a TPU.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from shims import placement, simulate_tpu, tpu
from shims._shared.tpu_generator import tpu_generator
from shims._simulated_tpu import versions
from shims._simulated_tpu.variables import variables
from shims.api_errors import (
    BackendMissingError,
    LaunchError,
    MemoryUnknownError,
    NotOnDeviceError,
    UnsupportedError,
)
from shims.backends import processes
from shims.backends.base import Backend, MemoryUse
from shims.backends.unneeded_scaler import UnneededScaler

# Topology of the chips. It covers all ranks of a host, so whoever starts them sets it.
_LAUNCH_ENVIRONMENT = ("TORCH_TPU_SLICEBUILDER_ADDRESSES", "TORCH_TPU_TOPOLOGY")


class TpuBackend(Backend):
    """TPUs of this machine, or simulated ones, one rank per TPU."""

    name = "tpu"
    group_backend = "tpu_dist"

    def __init__(self, why: str) -> None:
        super().__init__(why)
        for problem in versions.problems():
            raise BackendMissingError(problem.what, problem.remedy)
        self._simulated = simulate_tpu.is_installed() or not tpu.tpu_device_files()
        if not self._simulated:
            import torch_tpu  # noqa: F401 - registers torch.tpu
        elif processes.in_environment() or "torch_tpu" not in sys.modules:
            ranks = self.local_world_size()
            simulate_tpu.install(ranks)
            self.why = f"{why}; {simulate_tpu.describe(self.world_size())}"
        # Else torch has loaded torch_tpu for a TPU. This process can still start the ranks.

    def launch(self, fn: Callable[..., object], args: tuple[Any, ...], ranks: int | None) -> None:
        """Start one rank per TPU, unless a launcher has started the ranks."""
        if processes.in_environment():
            processes.require_same(ranks, self.world_size())
            self._require_launch_environment()
            processes.run(fn, int(os.environ["RANK"]), args)
            return
        if self._simulated:
            count = processes.requested_ranks(ranks) or 1
            simulate_tpu.require_ranks(count)
            with processes.environment(variables()):
                processes.spawn(fn, args, count)
            return
        devices = torch.accelerator.device_count()
        count = processes.requested_ranks(ranks) or devices
        if count > devices:
            raise LaunchError(
                f"{count} ranks requested for {devices} TPUs", "start one rank per TPU"
            )
        _set_launch_environment(count)
        processes.spawn(fn, args, count)

    def init_distributed(self, timeout: timedelta | None) -> None:
        """Join the process group; a rank has only one TPU."""
        self._require_launch_environment()
        super().init_distributed(timeout)

    def _require_launch_environment(self) -> None:
        """Check that the launcher has set how the ranks' TPUs are connected."""
        if self._simulated or all(name in os.environ for name in _LAUNCH_ENVIRONMENT):
            return
        if self.world_size() == 1:
            _set_launch_environment(1)
            return
        raise LaunchError(
            f"{self.world_size()} ranks were started without {' and '.join(_LAUNCH_ENVIRONMENT)}",
            "before torchrun: eval $(python -m torch.tpu.distributed | sed 's/^/export /'), "
            "or start the script with python, and shims.launch starts the ranks",
        )

    def device(self) -> torch.device:
        """Return this rank's TPU, which has number 0 for every rank."""
        if self._simulated:
            simulate_tpu.install(self.local_world_size())
        return torch.device("tpu", 0)

    def to_device(self, model: torch.nn.Module) -> torch.nn.Module:
        """Move and restore shared weights: as on XLA, a move creates a new parameter for each name."""
        return placement.move_and_tie(model, self.device())

    def compile(self, model: Callable[..., Any], options: dict[str, Any]) -> Any:
        """Compile for the TPU, without the modes and the backend that torch_tpu refuses."""
        refused = {"mode": ("reduce-overhead", "max-autotune"), "backend": ("inductor",)}
        kept = {
            name: value for name, value in options.items() if value not in refused.get(name, ())
        }
        return torch.compile(model, **kept)

    def autocast_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return bfloat16 for float16: a TPU has no float16 arithmetic."""
        return torch.bfloat16 if dtype == torch.float16 else dtype

    def autocast(self, dtype: torch.dtype, enabled: bool, cache_enabled: bool | None) -> Any:
        """Return a bfloat16 context, as on XLA."""
        dtype = self.autocast_dtype(dtype)
        if enabled and dtype not in (torch.bfloat16, torch.float32):
            raise UnsupportedError(
                f"shims.autocast(dtype={dtype}) on a TPU", "a TPU has torch.bfloat16 only"
            )
        return super().autocast(dtype, enabled, cache_enabled)

    def grad_scaler(self, options: dict[str, Any]) -> Any:
        """Return a scaler that does nothing: bfloat16 has the exponent range of float32."""
        return UnneededScaler(options)

    def synchronize(self) -> None:
        """Wait for this rank's TPU."""
        torch.accelerator.synchronize()

    def memory(self) -> MemoryUse:
        """Return the memory held by torch's allocator and the memory of the TPU."""
        if self._simulated:
            raise MemoryUnknownError(
                "shims.memory() has no answer on a simulated TPU: XLA:CPU does not count its memory",
                "ask on a CUDA device or a TPU, or catch MemoryUnknownError",
            )
        accelerator: Any = torch.accelerator
        _, limit = accelerator.get_memory_info()
        return MemoryUse(
            used=accelerator.memory_allocated(),
            peak=accelerator.max_memory_allocated(),
            limit=limit,
        )

    def generator(self) -> torch.Generator:
        """Return the generator of this rank's TPU."""
        return torch.Generator(self.device())

    def device_rng_state(self) -> torch.Tensor:
        """Return the generator state of this rank's TPU."""
        return tpu_generator().get_state()

    def set_device_rng_state(self, state: Any) -> None:
        """Restore the generator state of this rank's TPU."""
        tpu_generator().set_state(state)

    def barrier(self, group: Any) -> None:
        """Pass the device, about which torch would warn."""
        if dist.get_backend(group) == self.group_backend:
            dist.barrier(group, device_ids=[0])
        else:
            dist.barrier(group)

    def check(
        self, call: str, tensors: Sequence[torch.Tensor], group: Any, whole_world: bool = False
    ) -> None:
        """Refuse host tensors: a group of TPUs has no backend for them."""
        if dist.get_backend(group) != self.group_backend:
            return
        for tensor in tensors:
            if tensor.device.type != "tpu":
                raise NotOnDeviceError(
                    f"shims.{call} of a tensor on {tensor.device}",
                    "move it to shims.device(), or use a group made by "
                    "shims.new_group(backend='gloo')",
                )


def _set_launch_environment(count: int) -> None:
    """Set the topology of the chips before the ranks start.

    Raises:
        LaunchError: a host of this kind does not support this number of ranks.
    """
    try:
        torch.tpu.distributed.set_tpu_launch_env(nproc_per_node=count)
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise LaunchError(
            f"torch_tpu cannot start {count} ranks here: {reason}",
            "a host runs 1, 4 or 8 ranks (v5e, v6e), 1, 2, 4 or 8 (v4, v5p), 2, 4 or 8 (v7x)",
        ) from error
