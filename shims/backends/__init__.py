"""The backends: what answers a program that asks for an accelerator.

The order is TPU, CUDA, CPU; `MIGRATE_BACKEND` forces one. To choose asks the environment and the
device files, never the XLA runtime: it must not run before the ranks are launched.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shims import activate
from shims.api_errors import BackendMissingError
from shims.tpu import tpu_device_files

if TYPE_CHECKING:
    from shims.backends.base import Backend

FORCE = "MIGRATE_BACKEND"
_CLASSES = {
    "xla": "shims.backends.xla:XlaBackend",
    "tpu": "shims.backends.tpu:TpuBackend",
    "cuda": "shims.backends.cuda:CudaBackend",
    "cpu": "shims.backends.host:HostBackend",
}
_NEEDED = {"xla": "torch_xla", "tpu": "torch_tpu"}


@dataclass(frozen=True)
class Choice:
    """A backend's name, and what made the shims take it."""

    name: str
    why: str


@functools.cache
def current() -> Backend:
    """This process's backend, chosen at the first call.

    Raises:
        BackendMissingError: the one that is forced cannot run here.
    """
    chosen = choose()
    module, _, name = _CLASSES[chosen.name].partition(":")
    backend: Backend = getattr(importlib.import_module(module), name)(chosen.why)
    return backend


class Machine:
    """What there is to choose from here. Asked piece by piece: to ask for CUDA imports torch."""

    def has_tpu(self, root: Path = Path("/")) -> bool:
        """Whether there are device files of a TPU, without starting a runtime."""
        return bool(tpu_device_files(root))

    def has_cuda(self) -> bool:
        """Whether torch sees a GPU."""
        import torch

        return bool(torch.cuda.is_available())

    def has_package(self, name: str) -> bool:
        """Whether a package can be imported."""
        return importlib.util.find_spec(name) is not None


def choose(environment: Mapping[str, str] | None = None, machine: Machine | None = None) -> Choice:
    """Which backend there is to take, and why.

    Args:
        environment: None for that of this process.
        machine: None for this one.

    Raises:
        BackendMissingError: `MIGRATE_BACKEND` names none, or one that cannot run here.
    """
    environment = os.environ if environment is None else environment
    machine = machine or Machine()
    forced = environment.get(FORCE)
    if forced:
        return _forced(forced, machine)
    switched = environment.get(activate.BACKEND)
    if switched == "simulate":
        _require("xla", f"{activate.BACKEND}=simulate", machine)
        return Choice("xla", "replicas are simulated (shims.activate)")
    if switched == "cpu":
        return Choice("cpu", "the CPU answers for CUDA (shims.activate)")
    if machine.has_tpu():
        for name, package in _NEEDED.items():
            if machine.has_package(package):
                return Choice(name, f"there is a TPU, and {package}")
    if machine.has_cuda():
        return Choice("cuda", "there is CUDA and no TPU that a package here can drive")
    return Choice("cpu", "there is neither a TPU with torch_xla or torch_tpu, nor CUDA")


def _forced(name: str, machine: Machine) -> Choice:
    if name not in _CLASSES:
        raise BackendMissingError(
            f"{FORCE}={name!r} is no backend", f"one of {', '.join(_CLASSES)}"
        )
    _require(name, f"{FORCE}={name}", machine)
    if name == "cuda" and not machine.has_cuda():
        raise BackendMissingError(
            f"{FORCE}=cuda, but torch sees no CUDA device", "check nvidia-smi and torch's build"
        )
    return Choice(name, f"{FORCE}={name}")


def _require(name: str, asked: str, machine: Machine) -> None:
    package = _NEEDED.get(name)
    if package is not None and not machine.has_package(package):
        raise BackendMissingError(f"{asked} needs {package}", f"pip install {package}")
