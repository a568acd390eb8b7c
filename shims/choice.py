"""Which backend is taken: TPU, then CUDA, then the CPU; `MIGRATE_BACKEND` forces one.

To choose asks the environment and the device files, never the XLA runtime: it must not run before the
ranks are launched. torch is imported only where there may be a GPU.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass

from shims import activate, tpu
from shims.api_errors import BackendMissingError, LaunchError

FORCE = "MIGRATE_BACKEND"
# In the order in which messages list them.
BACKENDS = ("cpu", "cuda", "xla", "tpu")
# Backend -> what `shims.activate` calls it. On CUDA nothing is patched; for torch_tpu there are no
# patches: CUDA code as it is runs on a TPU through torch_xla.
ACTIVATED = {"cpu": "cpu", "xla": "xla", "cuda": activate.NO_BACKEND}
_NEEDED = {"xla": "torch_xla", "tpu": "torch_tpu"}


@dataclass(frozen=True)
class Choice:
    """A backend's name, and what made the shims take it."""

    name: str
    why: str


class Machine:
    """What there is to choose from here. Asked piece by piece: to ask for CUDA may import torch."""

    def tpu_chips(self) -> int:
        """The TPU chips, by their device files, without starting a runtime."""
        return tpu.chips()

    def cuda_devices(self) -> int:
        """The GPUs that torch sees; where there is no GPU's device file torch is not imported."""
        if not tpu.gpu_device_files():
            return 0
        import torch

        return torch.cuda.device_count()

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
    if switched in ("simulate", "xla"):
        _require("xla", f"{activate.BACKEND}={switched}", machine)
        return Choice("xla", f"{activate.BACKEND}={switched} (shims.activate)")
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
    """Which backend runs CUDA code as it is: a key of `ACTIVATED`.

    Args:
        forced: the one that was asked for by name; None for the one that is here.
        machine: None for this one.

    Raises:
        BackendMissingError: as `choose`; or there is a TPU with torch_tpu alone.
    """
    environment = {**os.environ, FORCE: forced} if forced else None
    name = choose(environment, machine).name
    if name not in ACTIVATED:
        raise BackendMissingError(
            "CUDA code as it is runs on a TPU through torch_xla, which is not here",
            "pip install torch_xla, or write it with the names of `shims`",
        )
    return name


def devices(name: str, machine: Machine | None = None) -> int:
    """How many ranks a script gets when nobody says: one for each device, at least 1."""
    machine = machine or Machine()
    counts = {"xla": machine.tpu_chips, "cuda": machine.cuda_devices}
    return max(1, counts[name]() if name in counts else 1)


def require_devices(name: str, ranks: int, machine: Machine | None = None) -> None:
    """Refuse more ranks of CUDA code as it is than there are GPUs: it takes the one of its local rank.

    Args:
        name: of the backend.
        ranks: on this machine.
        machine: None for this one.

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
        raise BackendMissingError(f"{asked} needs {package}", f"pip install {package}")
