"""What counts as a TPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from shims.tpu import tpu_device_files


def touch(root: Path, *names: str, vendor: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    pci = root / "sys/bus/pci/devices/0000:00:05.0"
    pci.mkdir(parents=True)
    (pci / "vendor").write_text(f"{vendor}\n")
    return root


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("dev/accel0", "dev/accel1", "dev/accelerator-notes"), ["accel0", "accel1"]),
        (("dev/vfio/0", "dev/vfio/1", "dev/vfio/vfio"), ["0", "1"]),
        ((), []),
    ],
)
def test_chips_of_both_generations(
    tmp_path: Path, names: tuple[str, ...], found: list[str]
) -> None:
    root = touch(tmp_path, *names, vendor="0x1ae0")
    assert [path.name for path in tpu_device_files(root)] == found


def test_vfio_of_other_devices_is_no_tpu(tmp_path: Path) -> None:
    assert tpu_device_files(touch(tmp_path, "dev/vfio/0", vendor="0x10de")) == []
