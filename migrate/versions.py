"""Installed versions and the needs of each command, without importing slow modules."""

from __future__ import annotations

from importlib import metadata

from converters.installing import is_installed

PACKAGES = ("torch", "torch_xla", "jax", "flax", "libtpu")
# Command → the modules without which it can do nothing, or only a part.
NEEDS: dict[str, tuple[str, ...]] = {
    "rewrite": (),
    "check": (),
    "run": ("torch", "torch_xla"),
    "prove": ("torch", "torch_xla"),
    "weights": ("torch",),
    "port": ("torch", "jax", "flax"),
    "train": ("torch", "jax", "flax", "optax"),
    "parity": ("torch", "jax", "flax"),
    "fit": ("torch", "torch_xla", "jax", "flax", "libtpu"),
    "assess": ("torch", "torch_xla", "jax", "libtpu"),
    "launch": (),
}


def installed(package: str) -> str | None:
    """Return the installed version of the distribution `package`, or None."""
    if package in PACKAGES and not is_installed(package):
        return None
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str | None]:
    """Return the versions that decide what works: this program's own and those of the frameworks."""
    return {name: installed(name) for name in ("tpu-migrate", *PACKAGES)}
