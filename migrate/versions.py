"""Which versions are installed, without importing what is slow to import."""

from __future__ import annotations

from importlib import metadata

PACKAGES = ("torch", "torch_xla", "jax", "flax", "libtpu")


def installed(package: str) -> str | None:
    """Return the installed version of the distribution `package`, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str | None]:
    """Return the versions that decide what works: this program's own and those of the frameworks."""
    return {name: installed(name) for name in ("tpu-migrate", *PACKAGES)}
