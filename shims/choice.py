"""Choice of the backend: TPU, then CUDA, then the CPU. `MIGRATE_BACKEND` forces one.

The choice reads the environment and the device files, never the XLA runtime, which must not run
before the ranks are launched. torch is imported only if there may be a GPU.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass

from shims import activate, tpu
from shims._simulated_tpu import versions
from shims.api_errors import BackendMissingError, LaunchError

FORCE = "MIGRATE_BACKEND"
# In the order in which messages list them.
BACKENDS = ("cpu", "cuda", "xla", "tpu")
# Backend -> its name in `shims.activate`. On CUDA nothing is patched.
ACTIVATED = {"cpu": "cpu", "xla": "xla", "tpu": "tpu", "cuda": activate.NO_BACKEND}
_NEEDED = {"xla": "torch_xla", "tpu": "torch_tpu"}


@dataclass(frozen=True)
class Choice:
    """Name of a backend, and the reason for choosing it."""

    name: str
    why: str


class Machine:
    """Accelerators and packages of this machine, looked up separately: the CUDA check may import torch."""

    def tpu_chips(self) -> int:
        """Return the number of TPU chips, from their device files, without starting a runtime."""
        return tpu.chips()

    def cuda_devices(self) -> int:
        """Return the number of GPUs visible to torch. Without a GPU device file, torch is not imported."""
        if not tpu.gpu_device_files():
            return 0
        import torch

        return torch.cuda.device_count()

    def has_package(self, name: str) -> bool:
        """Whether a package can be imported."""
        return importlib.util.find_spec(name) is not None


def choose(environment: Mapping[str, str] | None = None, machine: Machine | None = None) -> Choice:
    """Choose the backend and return it with the reason.

    Args:
        environment: None for the environment of this process.
        machine: None for this machine.

    Raises:
        BackendMissingError: `MIGRATE_BACKEND` names an unknown backend, or one that cannot run here.
    """
    environment = os.environ if environment is None else environment
    machine = machine or Machine()
    forced = environment.get(FORCE)
    if forced:
        return _forced(forced, machine)
    switched = environment.get(activate.BACKEND)
    if switched in ("simulate", "xla"):
        _require("xla", f"{activate.BACKEND}={switched}", machine)
        return Choice("xla", f"{activate.BACKEND}={switched} (shims.activate)")
    if switched in ("simulate-tpu", "tpu"):
        _require("tpu", f"{activate.BACKEND}={switched}", machine)
        return Choice("tpu", f"{activate.BACKEND}={switched} (shims.activate)")
    if switched == "cpu":
        return Choice("cpu", "the CPU answers for CUDA (shims.activate)")
    if machine.tpu_chips():
        for name, package in _NEEDED.items():
            if machine.has_package(package):
                return Choice(name, f"there is a TPU, and {package}")
    if machine.cuda_devices():
        return Choice("cuda", "there is CUDA and no TPU that a package here can drive")
    return Choice("cpu", "there is neither a TPU with torch_xla or torch_tpu, nor CUDA")


def choose_for_cuda_code(forced: str | None = None, machine: Machine | None = None) -> str:
    """Return the backend that runs unedited CUDA code: a key of `ACTIVATED`.

    Args:
        forced: the requested backend; None to choose.
        machine: None for this machine.

    Raises:
        BackendMissingError: as in `choose`, or the TPU has only torch_tpu.
    """
    environment = {**os.environ, FORCE: forced} if forced else None
    machine = machine or Machine()
    name = choose(environment, machine).name
    if name == "tpu" and machine.tpu_chips():
        # The answers were tried on a simulated TPU of torch_tpu only.
        what = "unedited CUDA code runs on a TPU through torch_xla"
        if machine.has_package("torch_xla"):
            remedy = "use the backend xla, or write it with the names of `shims`"
            raise BackendMissingError(f"{what}, not through torch_tpu", remedy)
        remedy = "pip install torch_xla, or write it with the names of `shims`"
        raise BackendMissingError(f"{what}, which is not installed", remedy)
    return name


def devices(name: str, machine: Machine | None = None) -> int:
    """Return the default number of ranks: one per device, at least 1."""
    machine = machine or Machine()
    counts = {"xla": machine.tpu_chips, "cuda": machine.cuda_devices}
    return max(1, counts[name]() if name in counts else 1)


def require_devices(name: str, ranks: int, machine: Machine | None = None) -> None:
    """Refuse unedited CUDA code with more ranks than GPUs: each rank uses the GPU of its local rank.

    Args:
        name: the name of the backend.
        ranks: the number of ranks on this machine.
        machine: None for this machine.

    Raises:
        LaunchError: there are too few GPUs.
    """
    if name != "cuda":
        return
    here = (machine or Machine()).cuda_devices()
    if ranks > here:
        few = "1 GPU is" if here == 1 else f"{here or 'no'} GPUs are"
        raise LaunchError(
            f"--ranks {ranks}, and {few} here: each rank needs one of its own",
            f"--ranks {max(here, 1)}, or --backend cpu for {ranks} ranks over gloo",
        )


def _forced(name: str, machine: Machine) -> Choice:
    if name not in BACKENDS:
        raise BackendMissingError(f"{FORCE}={name!r} is unknown", f"one of {', '.join(BACKENDS)}")
    _require(name, f"{FORCE}={name}", machine)
    if name == "cuda" and not machine.cuda_devices():
        raise BackendMissingError(
            f"{FORCE}=cuda, but torch sees no CUDA device", "check nvidia-smi and torch's build"
        )
    return Choice(name, f"{FORCE}={name}")


def _require(name: str, asked: str, machine: Machine) -> None:
    package = _NEEDED.get(name)
    if package is not None and not machine.has_package(package):
        remedy = versions.INSTALL if package == "torch_tpu" else f"pip install {package}"
        raise BackendMissingError(f"{asked} needs {package}", remedy)
