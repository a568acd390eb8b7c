"""TPUs through torch_tpu, PyTorch's native "tpu" device (torch 2.11 and later).

Written against torch_tpu 0.2.0, which asks for torch.accelerator's names where there are such. It was run
over XLA:CPU; it has not run on a TPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch_tpu  # type: ignore[import-not-found]  # noqa: F401 - registers torch.tpu

from shims import placement
from shims.api_errors import LaunchError, UnsupportedError
from shims.backends import processes
from shims.backends.base import Backend, MemoryUse
from shims.backends.unneeded_scaler import UnneededScaler

# Which chip talks to which: of all ranks of a host, so whoever starts them decides it.
_LAUNCH_ENVIRONMENT = ("TORCH_TPU_SLICEBUILDER_ADDRESSES", "TORCH_TPU_TOPOLOGY")


class TpuBackend(Backend):
    """The TPUs of this machine, one rank for each."""

    name = "tpu"
    group_backend = "tpu_dist"

    def launch(self, fn: Callable[..., object], args: tuple[Any, ...], ranks: int | None) -> None:
        """Start a rank for each TPU here, unless a launcher has."""
        if processes.in_environment():
            processes.require_same(ranks, self.world_size())
            self._require_launch_environment()
            processes.run(fn, int(os.environ["RANK"]), args)
            return
        devices = torch.accelerator.device_count()
        count = processes.wanted(ranks) or devices
        if count > devices:
            raise LaunchError(
                f"{count} ranks asked for with {devices} TPUs", "one rank for each TPU"
            )
        _set_launch_environment(count)
        processes.spawn(fn, args, count)

    def init_distributed(self, timeout: timedelta | None) -> None:
        """Join; a rank has one TPU, and need not choose it."""
        self._require_launch_environment()
        super().init_distributed(timeout)

    def _require_launch_environment(self) -> None:
        """See that whoever started the ranks has said how their TPUs are connected."""
        if all(name in os.environ for name in _LAUNCH_ENVIRONMENT):
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
        """Every rank has one TPU of its own, and to it that is number 0."""
        return torch.device("tpu", 0)

    def to_device(self, model: torch.nn.Module) -> torch.nn.Module:
        """Move and tie again: as on XLA a move makes new parameters, one for each name."""
        return placement.move_and_tie(model, self.device())

    def autocast_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """bfloat16 for float16, of which a TPU has no arithmetic."""
        return torch.bfloat16 if dtype == torch.float16 else dtype

    def autocast(self, dtype: torch.dtype, enabled: bool, cache_enabled: bool | None) -> Any:
        """bfloat16, as on XLA."""
        dtype = self.autocast_dtype(dtype)
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
        """What torch's allocator holds, and what the TPU has."""
        accelerator: Any = torch.accelerator
        _, limit = accelerator.get_memory_info()
        return MemoryUse(
            used=accelerator.memory_allocated(),
            peak=accelerator.max_memory_allocated(),
            limit=limit,
        )

    def generator(self) -> torch.Generator:
        """Of this rank's TPU."""
        return torch.Generator(self.device())

    def device_rng_state(self) -> torch.Tensor:
        """Of this rank's TPU."""
        return torch.tpu.default_generators[0].get_state()

    def set_device_rng_state(self, state: Any) -> None:
        """Of this rank's TPU."""
        torch.tpu.default_generators[0].set_state(state)


def _set_launch_environment(count: int) -> None:
    """Decide which chip talks to which, before the ranks start.

    Raises:
        LaunchError: a host of this kind has no such number of ranks.
    """
    try:
        torch.tpu.distributed.set_tpu_launch_env(nproc_per_node=count)
    except (RuntimeError, ValueError) as error:
        said = " ".join(str(error).split())
        raise LaunchError(
            f"torch_tpu cannot start {count} ranks here: {said}",
            "a host runs 1, 4 or 8 ranks (v5e, v6e), 1, 2, 4 or 8 (v4, v5p), 2, 4 or 8 (v7x)",
        ) from error
