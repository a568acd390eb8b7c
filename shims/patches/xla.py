"""Patches for XLA: its random generator, its lazy graphs, the start of ranks."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.multiprocessing
import torch_xla
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils import checkpoint
from torch_xla.core import xla_model
from torch_xla.utils.checkpoint import checkpoint as xla_checkpoint

from shims.patches import host_draws, parameters
from shims.patches.cuda import refusal
from shims.patches.devices import Devices
from shims.patches.registry import Patch, patch
from shims.patches.rng import BYTES_OF_A_DEVICE


def finish() -> None:
    """Run the pending graph and wait for it."""
    torch_xla.sync(wait=True)


class XlaGenerator:
    """XLA's generator under the names of `torch.cuda`; a process has one device.

    Args:
        devices: the CUDA devices reported to the program.
    """

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._seed = torch.initial_seed()
        # Before the runtime is started. Seeding would start it, but a launch needs it unstarted.
        self._pending: int | None = None
        self._is_seeded = False

    def drawing(self, func: Any, ordinal: int | None, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call `func`; without another generator it draws from XLA's generator if its tensors are on XLA."""
        if ordinal is not None and self._pending is not None:
            self.manual_seed(self._pending)
        elif ordinal is not None and not self._is_seeded:
            # XLA starts all replicas at the same seed; unseeded GPUs each draw different numbers.
            self.manual_seed((self._seed + torch_xla.runtime.global_ordinal()) % 2**64)
        if ordinal is not None and kwargs.get("generator") is not None:
            return host_draws.drawn(func, args, kwargs, self._devices.placement.target)
        return func(*args, **kwargs)

    def manual_seed(self, seed: int) -> None:
        """Seed XLA; `torch.manual_seed` does so too."""
        self._seed = int(seed)
        self._is_seeded = True
        if torch_xla._XLAC._xla_runtime_is_initialized():
            self._pending = None
            xla_model.set_rng_state(self._seed)
        else:
            self._pending = self._seed

    manual_seed_all = manual_seed

    def seed(self) -> None:
        """Seed XLA randomly."""
        self.manual_seed(torch.Generator().seed() % 2**63)

    seed_all = seed

    def initial_seed(self) -> int:
        """Return XLA's seed."""
        return self._seed

    def get_rng_state(self, device: Any = "cuda") -> torch.Tensor:
        """Return XLA's state in the form of CUDA's, 16 bytes: the number as the seed, and position 0."""
        self._devices.index(device)
        return torch.tensor([*xla_model.get_rng_state().to_bytes(16, "little")], dtype=torch.uint8)

    def get_rng_state_all(self) -> list[torch.Tensor]:
        """Return the state, once for each device reported to the program."""
        return [self.get_rng_state() for _ in range(self._devices.count)]

    def set_rng_state(self, new_state: torch.Tensor, device: Any = "cuda") -> None:
        """Restore a state of `get_rng_state`. Of the state of a GPU, XLA takes the seed.

        Raises:
            DeviceNotAnsweredError: the state is of another generator.
        """
        if new_state.dtype is not torch.uint8 or new_state.numel() != BYTES_OF_A_DEVICE:
            remedy = "seed with torch.manual_seed on XLA"
            raise refusal("a random state of another generator", remedy, "rng")
        self._is_seeded = True
        xla_model.set_rng_state(int.from_bytes(new_state[:8].tolist(), "little"))

    def set_rng_state_all(self, new_states: Iterable[torch.Tensor]) -> None:
        """Restore the current device's state from the states of all devices."""
        self.set_rng_state(list(new_states)[self._devices.current])


def patches(devices: Devices) -> Iterator[Patch]:
    """Yield the patches of the start of ranks and of checkpointing."""
    spawn = torch.multiprocessing.spawn

    @functools.wraps(spawn)
    def launch(
        fn: Any, args: Any = (), nprocs: int = 1, join: bool = True, *more: Any, **kwargs: Any
    ) -> None:
        if nprocs != devices.count or not join:
            raise refusal(
                f"mp.spawn of {nprocs} processes with {devices.count} devices, join={join}",
                f"run it with --ranks {nprocs} and join=True: XLA has a process for each device",
                "mp-spawn",
            )
        torch_xla.launch(fn, args=tuple(args))

    for module in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
        yield patch(module, "spawn", launch, "torch_xla.launch")

    clip = torch.nn.utils.clip_grad_norm_

    @functools.wraps(clip)
    def clipped(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("foreach", None)
        return clip(*args[:4], **kwargs)

    for module in (torch.nn.utils, torch.nn.utils.clip_grad):
        yield patch(module, "clip_grad_norm_", clipped, "without foreach: XLA fuses by itself")

    def checkpointed(function: Any, *args: Any, use_reentrant: Any = None, **kwargs: Any) -> Any:
        return xla_checkpoint(function, *args, use_reentrant=True, **kwargs)

    yield patch(checkpoint, "checkpoint", checkpointed, "torch_xla.utils.checkpoint")
    yield from parameters.patches()


def hooks() -> list[Any]:
    """Return torch's hooks around each optimizer step, as handles for their removal."""

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            # XLA fuses by itself; torch's fused kernels refuse its tensors. This also applies if a
            # checkpoint contained the flag.
            if group.get("fused"):
                group["fused"] = None

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        # Without the end of a step, the graph would grow with every step.
        torch_xla.sync()

    return [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
