"""Patches for torch_tpu: its random generator, and parameters that stay the same objects in a move."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from shims._shared.running_statistics import following
from shims._shared.tpu_generator import tpu_generator
from shims.patches import host_draws, parameters
from shims.patches.cuda import refusal
from shims.patches.devices import Devices
from shims.patches.registry import Patch, patch

# Before the program's own names are answered.
_synchronize = torch.accelerator.synchronize


def finish() -> None:
    """Wait until the TPU has finished earlier work."""
    _synchronize()


class TpuGenerator:
    """Generator of this process's TPU under the names of `torch.cuda`; `torch.manual_seed` seeds it.

    Args:
        devices: the CUDA devices reported to the program.
    """

    def __init__(self, devices: Devices) -> None:
        self._devices = devices

    def drawing(self, func: Any, ordinal: int | None, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call `func`; a generator of the program is on the host, and draws there."""
        if ordinal is not None and kwargs.get("generator") is not None:
            return host_draws.drawn(func, args, kwargs, self._devices.placement.target)
        return func(*args, **kwargs)

    def manual_seed(self, seed: int) -> None:
        """Seed the TPU."""
        tpu_generator().manual_seed(int(seed))

    manual_seed_all = manual_seed

    def seed(self) -> None:
        """Seed the TPU randomly."""
        self.manual_seed(torch._C.Generator().seed() % 2**63)

    seed_all = seed

    def initial_seed(self) -> int:
        """Return the seed of the TPU."""
        return tpu_generator().initial_seed()

    def get_rng_state(self, device: Any = "cuda") -> torch.Tensor:
        """Return the state of the TPU's generator."""
        self._devices.index(device)
        return tpu_generator().get_state()

    def get_rng_state_all(self) -> list[torch.Tensor]:
        """Return the state, once for each device reported to the program."""
        return [self.get_rng_state() for _ in range(self._devices.count)]

    def set_rng_state(self, new_state: torch.Tensor, device: Any = "cuda") -> None:
        """Restore a state of `get_rng_state`.

        Raises:
            DeviceNotAnsweredError: the state is of another generator.
        """
        try:
            tpu_generator().set_state(new_state.cpu())
        except RuntimeError as error:
            remedy = "seed with torch.manual_seed on a TPU"
            raise refusal("a random state of a GPU", remedy, "rng") from error

    def set_rng_state_all(self, new_states: Iterable[torch.Tensor]) -> None:
        """Restore the current device's state from the states of all devices."""
        self.set_rng_state(list(new_states)[self._devices.current])


def patches() -> Iterator[Patch]:
    """Yield the patches of module moves, which would create new parameters, and of batch norm."""
    yield from parameters.patches()
    answers = "updates the running statistics, which torch_tpu leaves as they are"
    functional = torch.nn.functional
    yield patch(functional, "batch_norm", following(functional.batch_norm), answers)
