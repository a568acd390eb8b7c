"""Wheel of this project, made from the installed packages without the network."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import converters
import migrate
import shims

_PACKAGES = (migrate, converters, shims)
_DATE = (2020, 1, 1, 0, 0, 0)  # the same bytes each time
_TAG = "py3-none-any"


def wheel_name() -> str:
    """Return the file name of the wheel."""
    return f"tpu_migrate-{metadata.version('tpu-migrate')}-{_TAG}.whl"


def write_wheel(folder: Path) -> Path:
    """Write the wheel into a folder, and return its path."""
    distribution = metadata.distribution("tpu-migrate")
    stem = f"tpu_migrate-{distribution.version}"
    info = f"{stem}.dist-info"
    entries = dict(_sources())
    entries[f"{info}/METADATA"] = (distribution.read_text("METADATA") or "").encode()
    entries[f"{info}/entry_points.txt"] = b"[console_scripts]\nmigrate = migrate.cli:main\n"
    entries[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: migrate launch\nRoot-Is-Purelib: true\nTag: {_TAG}\n".encode()
    )
    rows = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in entries.items()]
    entries[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    path = folder / wheel_name()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(zipfile.ZipInfo(name, _DATE), data, zipfile.ZIP_DEFLATED)
    return path


def _sources() -> Iterator[tuple[str, bytes]]:
    """Yield name and bytes of each file of the packages."""
    for package in _PACKAGES:
        root = Path(str(package.__file__)).parent
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(root.parent).as_posix(), path.read_bytes()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
