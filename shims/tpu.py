"""Is there a TPU in this machine, or a GPU? Asked of the device files: a runtime takes seconds."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

_GOOGLE_PCI_VENDOR = "0x1ae0"


def tpu_device_files(root: Path = Path("/")) -> list[Path]:
    """Return the device files of the TPU chips: /dev/accelN up to v4, /dev/vfio/N from v5 on.

    Other machines have vfio devices too: they count only beside a PCI device of Google's.

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
    """The TPU chips of this machine; 0 where PJRT_DEVICE says that another device is to be used."""
    if os.environ.get("PJRT_DEVICE", "TPU") != "TPU":
        return 0
    return len(tpu_device_files())


def gpu_device_files(root: Path = Path("/")) -> list[Path]:
    """Return the device files that a GPU of NVIDIA's or AMD's has, and a GPU under WSL.

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
