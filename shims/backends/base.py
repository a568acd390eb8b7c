"""Interface of a backend, with the defaults of an ordinary torch.distributed process."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch.nn.parallel import DistributedDataParallel

from shims._shared import gloo_output, gloo_threads
from shims.api_errors import NotOnDeviceError
from shims.backends import processes

_NOTHING = contextlib.nullcontext()


@dataclass(frozen=True)
class MemoryUse:
    """Memory of this rank's device, in bytes.

    Attributes:
        used: bytes held by tensors now.
        peak: the maximum of `used` since the program started.
        limit: the total memory of the device.
    """

    used: int
    peak: int
    limit: int


class Backend(ABC):
    """Backend of one process: one kind of device.

    The defaults fit any backend whose ranks are processes with a torch.distributed group.

    Args:
        why: the reason for the choice of this backend, as text.
    """

    name: str
    # Backend name for torch.distributed.
    group_backend: str
    # Whether the group computes averages. NCCL does; for gloo and XLA the shims sum and divide.
    averages = False
    # Whether the device has the kernels of torch.nn.SyncBatchNorm.
    syncs_batch_norm = False

    def __init__(self, why: str) -> None:
        self.why = why

    def __repr__(self) -> str:
        return f"<{self.name}: {self.why}>"

    # --- ranks

    @abstractmethod
    def launch(self, fn: Callable[..., object], args: tuple[Any, ...], ranks: int | None) -> None:
        """Call `fn(rank, *args)` on every rank; see `shims.launch`."""

    def init_distributed(self, timeout: timedelta | None) -> None:
        """Join the default process group; see `shims.init_distributed`."""
        options: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        alone = self.world_size() == 1 and "MASTER_ADDR" not in os.environ
        if alone or not processes.in_environment():
            # No other ranks were started: a group of one, without opening a port.
            options |= {"store": dist.HashStore(), "rank": 0, "world_size": 1}
        gloo_threads.let_go_at_exit()
        gloo_output.keep_off_stdout()
        dist.init_process_group(self.group_backend, **options)

    def rank(self) -> int:
        """Return the global rank."""
        return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))

    def local_rank(self) -> int:
        """Return the rank within this machine."""
        return int(os.environ.get("LOCAL_RANK", "0"))

    def world_size(self) -> int:
        """Return the number of ranks on all machines."""
        if dist.is_initialized():
            return int(dist.get_world_size())
        return int(os.environ.get("WORLD_SIZE", "1"))

    def local_world_size(self) -> int:
        """Return the number of ranks on this machine."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    # --- models

    @abstractmethod
    def device(self) -> torch.device:
        """Return this rank's device."""

    def to_device(self, model: torch.nn.Module) -> torch.nn.Module:
        """Move a model and keep shared weights shared; see `shims.to_device`."""
        return model.to(self.device())

    def ddp(self, model: torch.nn.Module, options: dict[str, Any]) -> DistributedDataParallel:
        """Wrap a model that is on the device; see `shims.ddp`."""
        self.require_on_device(model)
        return DistributedDataParallel(model, **options)

    def require_on_device(self, model: torch.nn.Module) -> None:
        """Refuse a model with a parameter or buffer on another device than this rank's.

        Raises:
            NotOnDeviceError: the message names the first such tensor and the usual mistake.
        """
        device = self.device()
        for kind, tensors in (
            ("parameter", model.named_parameters()),
            ("buffer", model.named_buffers()),
        ):
            for name, tensor in tensors:
                if tensor.device != device:
                    raise NotOnDeviceError(
                        f"{kind} {name!r} is on {tensor.device}, this rank's device is {device}",
                        "call shims.to_device(model) before shims.ddp(model), and make the "
                        "optimizer after both",
                    )

    def checkpoint_activations(
        self, function: Callable[..., Any], args: tuple[Any, ...], preserve_rng_state: bool
    ) -> Any:
        """Run `function` and recompute it in the backward pass; see `shims.checkpoint_activations`."""
        return torch.utils.checkpoint.checkpoint(
            function, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state
        )

    def compile(self, model: Callable[..., Any], options: dict[str, Any]) -> Any:
        """Compile a model or a function; see `shims.compile`."""
        return torch.compile(model, **options)

    def pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor to page-locked memory; see `shims.pin_memory`."""
        return tensor

    # --- steps

    def step(self) -> contextlib.AbstractContextManager[None]:
        """Return the context for the body of a training step."""
        return _NOTHING

    def autocast_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype for a region that a CUDA script runs in `dtype`; see `shims.autocast_dtype`."""
        return dtype

    def autocast(self, dtype: torch.dtype, enabled: bool, cache_enabled: bool | None) -> Any:
        """Return the mixed-precision context of this device; see `shims.autocast`."""
        return region(self.name, dtype, enabled=enabled, cache_enabled=cache_enabled)

    def grad_scaler(self, options: dict[str, Any]) -> Any:
        """Return a gradient scaler; see `shims.grad_scaler`."""
        return torch.amp.GradScaler(self.device().type, **options)

    def clip_grad_norm(
        self,
        parameters: Iterable[torch.Tensor],
        max_norm: float,
        norm_type: float,
        error_if_nonfinite: bool,
    ) -> torch.Tensor:
        """Scale the gradients down to a norm; see `shims.clip_grad_norm`."""
        # Looked up at each call: torch_xla replaces it.
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite)

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has finished all its work."""

    @abstractmethod
    def memory(self) -> MemoryUse:
        """Return the memory of this rank's device.

        Raises:
            MemoryUnknownError: the backend does not report its memory.
        """

    # --- random numbers

    def manual_seed(self, seed: int) -> None:
        """Seed torch on the host and the device."""
        torch.manual_seed(seed)

    def generator(self) -> torch.Generator:
        """Return a generator that this device draws from; see `shims.generator`."""
        return torch.Generator()

    @abstractmethod
    def device_rng_state(self) -> torch.Tensor | int | None:
        """Return the state of the device's generator, or None if there is only the host's."""

    @abstractmethod
    def set_device_rng_state(self, state: Any) -> None:
        """Restore a state of `device_rng_state`, from the same kind of device."""

    # --- collectives

    def check(  # noqa: B027 - nothing to refuse is the rule
        self, call: str, tensors: Sequence[torch.Tensor], group: Any, whole_world: bool = False
    ) -> None:
        """Refuse tensors and groups for which the collective `call` would be wrong.

        Args:
            call: the name of the collective, for the message.
            tensors: the tensors of this rank.
            group: None for all ranks.
            whole_world: whether the backend ignores the group and uses all ranks.
        """

    def after_collective(self, group: Any) -> None:  # noqa: B027 - elsewhere it has run
        """Run a collective that was just called, unless it is part of a step's graph."""

    def object_group(self, call: str, group: Any) -> Any:
        """Return the group that carries the objects of the ranks of `group`."""
        return group

    def barrier(self, group: Any) -> None:
        """Wait until all ranks of the group have arrived."""
        dist.barrier(group)

    def broadcast(self, tensor: torch.Tensor, src: int, group: Any, async_op: bool) -> Any:
        """Overwrite every rank's tensor with that of rank `src`."""
        return dist.broadcast(tensor, src, group, async_op)

    def all_to_all(
        self,
        outputs: list[torch.Tensor],
        inputs: list[torch.Tensor],
        group: Any,
        async_op: bool,
    ) -> Any:
        """Exchange tensor i with rank i."""
        return dist.all_to_all(outputs, inputs, group, async_op)

    def new_group(
        self, ranks: list[int] | None, timeout: timedelta | None, group_backend: str | None
    ) -> Any:
        """Return a group of some of the ranks; see `shims.new_group`."""
        return dist.new_group(ranks, timeout, group_backend)


def region(
    device_type: str, dtype: torch.dtype, *, enabled: bool, cache_enabled: bool | None
) -> torch.autocast:
    """Return `torch.autocast` that also supports float32.

    Args:
        device_type, dtype, enabled, cache_enabled: the arguments of torch.autocast.
    """
    low = torch.bfloat16 if dtype == torch.float32 else dtype
    autocast = torch.autocast(device_type, dtype=low, enabled=enabled, cache_enabled=cache_enabled)
    # Except on CUDA, torch's constructor refuses float32 and disables the region, which leaves its
    # inputs unchanged. Entering a region, however, works with any dtype.
    autocast.fast_dtype = dtype
    return autocast
