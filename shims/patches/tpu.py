"""Patches for torch_tpu: its random generator, and parameters that stay the same objects in a move."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from shims._shared.tpu_generator import tpu_generator
from shims.patches import host_draws, parameters
from shims.patches.cuda import refusal
from shims.patches.devices import Devices
from shims.patches.registry import Patch, patch

# Before the program's own names are answered.
_synchronize = torch.accelerator.synchronize
_batch_norm = torch.nn.functional.batch_norm
_inside = threading.local()


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


def batch_norm(
    input: torch.Tensor,  # noqa: A002 (torch's name)
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Normalize as torch does, and update the running statistics, which torch_tpu 0.2.0 does not."""
    # Under a mode, torch's own function calls this one again.
    again, _inside.runs = getattr(_inside, "runs", False), True
    try:
        output = _batch_norm(
            input, running_mean, running_var, weight, bias, training, momentum, eps
        )
    finally:
        _inside.runs = again
    if again:
        return output
    if training and input.device.type == "tpu" and not _keeps_statistics():
        with torch.no_grad():
            values = input.transpose(0, 1).flatten(1)
            for kept, statistic in ((running_mean, torch.mean), (running_var, torch.var)):
                if kept is not None:
                    kept.lerp_(statistic(values.to(kept.dtype), 1), momentum)
    return output


@functools.cache
def _keeps_statistics() -> bool:
    """Whether the loaded torch_tpu updates running statistics itself: tried once, on two numbers."""
    mean, variance = torch.zeros(1, device="tpu"), torch.ones(1, device="tpu")
    values = torch.tensor([[1.0], [3.0]], device="tpu")
    torch.batch_norm(values, None, None, mean, variance, True, 0.5, 1e-5, False)
    return bool(mean.cpu() != 0)


def patches() -> Iterator[Patch]:
    """Yield the patches of module moves, which would create new parameters, and of batch norm."""
    yield from parameters.patches()
    answers = "updates the running statistics, which torch_tpu leaves as they are"
    yield patch(torch.nn.functional, "batch_norm", batch_norm, answers)
