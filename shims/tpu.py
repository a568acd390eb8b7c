"""Detection of a TPU or GPU by device files, because starting a runtime takes seconds."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

_GOOGLE_PCI_VENDOR = "0x1ae0"


def tpu_device_files(root: Path = Path("/")) -> list[Path]:
    """Return the device files of the TPU chips: /dev/accelN up to v4, /dev/vfio/N from v5 on.

    Other machines have vfio devices too: they count only with a PCI device of Google.

    Args:
        root: the root of the file system.
    """
    accel = list(root.glob("dev/accel[0-9]*"))
    vfio = [path for path in root.glob("dev/vfio/*") if path.name.isdigit()]
    vendors = root.glob("sys/bus/pci/devices/*/vendor")
    if not any(vendor.read_text().strip() == _GOOGLE_PCI_VENDOR for vendor in vendors):
        return []
    return sorted([*accel, *vfio])


def chips() -> int:
    """Return the number of TPU chips of this machine; 0 if PJRT_DEVICE names another device."""
    if os.environ.get("PJRT_DEVICE", "TPU") != "TPU":
        return 0
    return len(tpu_device_files())


def gpu_device_files(root: Path = Path("/")) -> list[Path]:
    """Return the device files of NVIDIA and AMD GPUs, and of GPUs under WSL.

    Args:
        root: the root of the file system.
    """
    kinds = ("dev/nvidia[0-9]*", "dev/kfd", "dev/dxg")
    return sorted(path for kind in kinds for path in root.glob(kind))


def tpu_present() -> bool:
    """Whether this machine has a TPU and the library to drive it."""
    return chips() > 0 and (
        "TPU_LIBRARY_PATH" in os.environ or importlib.util.find_spec("libtpu") is not None
    )
