"""GPUs of this machine by name, without importing a framework."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from shims.tpu import gpu_device_files

_SECONDS = 20
_QUERY = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
_MODEL = re.compile(r"^Model:\s*(.+?)\s*$", re.MULTILINE)


def gpu_names(root: Path = Path("/")) -> tuple[str, ...]:
    """Return a name for each GPU; its device file if the driver gives no name.

    Args:
        root: the root of the file system.
    """
    return _from_nvidia_smi() or _from_driver(root) or tuple(map(str, gpu_device_files(root)))


def parse_names(listing: str) -> tuple[str, ...]:
    """Return names with memory from what nvidia-smi lists: `NVIDIA H100 80GB HBM3, 81559`."""
    names = []
    for line in listing.splitlines():
        name, _, mebibytes = line.rpartition(",")
        if name.strip() and mebibytes.strip().isdecimal():
            names.append(f"{name.strip()} ({int(mebibytes) / 1024:.0f} GiB)")
        elif line.strip():
            names.append(line.strip().rstrip(","))
    return tuple(names)


def _from_nvidia_smi() -> tuple[str, ...]:
    try:
        done = subprocess.run(_QUERY, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return parse_names(done.stdout) if done.returncode == 0 else ()


def _from_driver(root: Path) -> tuple[str, ...]:
    files = sorted(root.glob("proc/driver/nvidia/gpus/*/information"))
    models = [_MODEL.search(file.read_text(errors="replace")) for file in files]
    return tuple(model[1] for model in models if model)
