"""Versions of a job are those of constraints.txt; the wheel of a job is this project."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from migrate.launch.framework import Framework
from migrate.launch.pins import TABLE, pins

ROOT = Path(__file__).parents[2]


def normal(name: str) -> str:
    return name.partition("[")[0].lower().replace("_", "-")


def constraints(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text().splitlines()
    pairs = (line.partition("==") for line in lines)
    return {normal(name): version for name, mark, version in pairs if mark}


def test_each_version_is_that_of_the_constraints() -> None:
    """torch_tpu needs a newer torch and libtpu than everything else here."""
    of_tpu, of_all = constraints("constraints-torch-tpu.txt"), constraints("constraints.txt")
    for framework, table in yaml.safe_load(TABLE.read_text()).items():
        tested = of_tpu if framework == "torch_tpu" else of_all
        for pin in table:
            name, _, version = pin.partition("==")
            assert tested[normal(name)] == version, pin


@pytest.mark.parametrize(
    ("imports", "framework", "has_torch"),
    [
        ({"torch"}, Framework.JAX, True),
        (set(), Framework.JAX, False),
        ({"torch"}, Framework.TORCH_TPU, False),
    ],
)
def test_a_jax_program_that_imports_torch_gets_it(
    imports: set[str], framework: Framework, has_torch: bool
) -> None:
    """`data.py` of `migrate train` is the script's own data."""
    assert ("torch==2.9.1" in pins(framework, imports)) is has_torch


def test_the_wheel_holds_the_packages_and_what_they_read(one_wheel: Path) -> None:
    names = zipfile.ZipFile(one_wheel).namelist()
    packages = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert packages == {"migrate", "converters", "shims"}
    assert {"migrate/launch/pins.yaml", "shims/_site/sitecustomize.py"} <= set(names)


@pytest.mark.long
def test_pip_installs_the_wheel(one_wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target]
    subprocess.run([*pip, one_wheel], check=True)
    code = "import migrate, sys; sys.exit(not migrate.__file__.startswith(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, target], cwd=target, check=False)
    assert done.returncode == 0
