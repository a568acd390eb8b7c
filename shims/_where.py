"""Which backend is here: TPU, then CUDA, then the CPU; `MIGRATE_BACKEND` forces one."""

from __future__ import annotations

import glob
import importlib.util
import os

from shims.errors import BackendError
from shims.tpu import tpu_device_files

VARIABLE = "MIGRATE_BACKEND"
BACKENDS = ("cpu", "cuda", "xla")

# Backend -> what `shims.activate` calls it. On CUDA nothing is patched.
ACTIVATED = {"cpu": "cpu", "xla": "xla", "cuda": "none"}


def chosen() -> str:
    """The backend that is forced, or the first that is here.

    Raises:
        BackendError: an unknown one is forced.
    """
    forced = os.environ.get(VARIABLE)
    if forced:
        if forced not in BACKENDS:
            raise BackendError(f"{VARIABLE}={forced!r} is unknown", f"one of {', '.join(BACKENDS)}")
        return forced
    if tpu_chips() and importlib.util.find_spec("torch_xla") is not None:
        return "xla"
    return "cuda" if gpus() else "cpu"


def tpu_chips() -> int:
    """The TPU chips of this machine, by their device files; 0 where PJRT_DEVICE says otherwise."""
    if os.environ.get("PJRT_DEVICE", "TPU") != "TPU":
        return 0
    return len(tpu_device_files())


def gpus() -> int:
    """The NVIDIA GPUs of this machine, by their device files."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return len(visible.split(",")) if visible else len(glob.glob("/dev/nvidia[0-9]*"))


def devices(backend: str) -> int:
    """How many ranks a script gets when nobody says: one for each device, at least 1."""
    return max(1, {"xla": tpu_chips, "cuda": gpus}.get(backend, lambda: 1)())
