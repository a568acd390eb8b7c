"""Disk space of each install: the packages that it brings, as they are installed in this environment.

python benchmarks/install_size.py

The environment needs `.[dev]`. The smallest install is measured once by `du` (`BARE`); the others follow from the
files of their packages. With PyTorch's CPU build there are no CUDA libraries, and torch itself is smaller (`CPU_TORCH`,
measured in the environment of torch_tpu).
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import history
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
INSTALLS = ("", "jax", "torch", "port", "train", "xla", "tpu", "xla,tpu", "xla,port,tpu,report")
BARE = 171e6  # bytes: pip install . in a new environment
CPU_TORCH = 754e6  # bytes: torch 2.13.0+cpu
_CUDA = ("nvidia-", "triton")


def packages_of(extras: Iterable[str]) -> dict[str, metadata.Distribution]:
    """Return the packages that an install brings, by name."""
    open_requirements = [Requirement(text) for text in PROJECT["dependencies"]]
    open_requirements += [Requirement(f"tpu-migrate[{extra}]") for extra in extras if extra]
    seen: set[tuple[str, frozenset[str]]] = set()
    packages: dict[str, metadata.Distribution] = {}
    while open_requirements:
        requirement = open_requirements.pop()
        name = canonicalize_name(requirement.name)
        key = name, frozenset(requirement.extras)
        if key in seen:
            continue
        seen.add(key)
        if name == "tpu-migrate":
            for extra in requirement.extras:
                texts = PROJECT["optional-dependencies"][extra]
                open_requirements += [Requirement(text) for text in texts]
            continue
        packages[name] = metadata.distribution(name)
        for text in packages[name].requires or ():
            further = Requirement(text)
            extras_of = ("", *requirement.extras)
            marker = further.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras_of):
                open_requirements.append(further)
    return packages


def bytes_of(packages: Iterable[metadata.Distribution]) -> int:
    """Return the disk space of the files of packages."""
    files = (file.locate() for package in packages for file in package.files or ())
    return sum(os.stat(str(file)).st_blocks * 512 for file in files if os.path.exists(str(file)))


def main() -> None:
    """Print the sizes, and append them to the history."""
    bare = BARE - bytes_of(packages_of(()).values())
    rows = []
    for extras in INSTALLS:
        packages = packages_of(extras.split(","))
        size = bare + bytes_of(packages.values())
        cuda = {name: package for name, package in packages.items() if name.startswith(_CUDA)}
        small = size - bytes_of(cuda.values())
        if "torch" in packages:
            small += CPU_TORCH - bytes_of([packages["torch"]])
        rows.append(
            {
                "install": f"pip install '.[{extras}]'" if extras else "pip install .",
                "on disk": f"{size / 1e9:.2f} GB",
                "with the CPU build of torch": f"{small / 1e9:.2f} GB" if "torch" in packages else "",
            }
        )
        print(*rows[-1].values(), sep="  ")
    history.append("install", *rows, packages=("torch", "torch_xla", "jax", "libtpu"))


if __name__ == "__main__":
    main()
