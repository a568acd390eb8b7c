"""Random numbers: the host's and the device's generator, seeded and saved together."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import torch

from shims.backends import current
from shims.backends.base import Backend


class RngState(TypedDict):
    """State of this rank's generators, for a checkpoint.

    Keys:
        host: the state of torch's CPU generator, a tensor of bytes.
        backend: the name of the backend of `device`.
        device: the state of the device's generator: bytes on CUDA, a number on XLA, None on the CPU.
    """

    host: torch.Tensor
    backend: str
    device: Any


def manual_seed(seed: int) -> None:
    """Seed torch on the host and on the device: on XLA, `torch.manual_seed` seeds the host only.

    The same seed gives other numbers on another kind of device. Draw initial weights and masks that
    must be equal on the host. Python's `random` and numpy are seeded separately.
    """
    current().manual_seed(seed)


def generator() -> torch.Generator:
    """Return a generator for `torch.randn(…, device=shims.device(), generator=…)` and similar calls.

    On CUDA it is one of this rank's GPU. On XLA and the CPU it is one of the host; on XLA,
    torch_xla moves the drawn values.
    """
    return current().generator()


def rng_state() -> RngState:
    """Return the state of torch's generators on this rank."""
    backend = current()
    return {
        "host": torch.get_rng_state(),
        "backend": backend.name,
        "device": backend.device_rng_state(),
    }


def set_rng_state(state: RngState | torch.Tensor | Sequence[torch.Tensor]) -> None:
    """Restore a state of `rng_state`.

    A state from another backend sets the host's generator only, and warns: the device's numbers
    cannot continue on another kind of device. The same holds for a state of
    `torch.cuda.get_rng_state`, or a list for all GPUs, in a checkpoint of a script written without
    the shims. On CUDA such a state is restored.
    """
    backend = current()
    if not isinstance(state, Mapping):
        _set_gpu_state(state, backend)
        return
    torch.set_rng_state(state["host"].cpu())
    if state["backend"] == backend.name:
        backend.set_device_rng_state(state["device"])
    elif backend.name != "cpu":
        warnings.warn(
            f"the random state is of {state['backend']}: {backend.name}'s generator keeps its own",
            stacklevel=2,
        )


def _set_gpu_state(state: torch.Tensor | Sequence[torch.Tensor], backend: Backend) -> None:
    if backend.name == "cuda":
        device_state = state if isinstance(state, torch.Tensor) else state[backend.local_rank()]
        backend.set_device_rng_state(device_state.cpu())
    elif backend.name != "cpu":
        warnings.warn(
            f"the random state is of a GPU: {backend.name}'s generator keeps its own", stacklevel=3
        )
