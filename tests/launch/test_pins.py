"""Versions of a job are those of constraints.txt; the wheel of a job is this project."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from migrate.launch.pins import TABLE

ROOT = Path(__file__).parents[2]
# torch_tpu needs a newer torch and libtpu than everything else here.
APART = {"torch==2.13.0", "torch_tpu==0.2.0", "libtpu==0.0.52"}


def normal(name: str) -> str:
    return name.partition("[")[0].lower().replace("_", "-")


def test_each_version_is_that_of_the_constraints() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    tested = {
        normal(name): version
        for name, mark, version in (line.partition("==") for line in lines)
        if mark
    }
    for framework, pins in yaml.safe_load(TABLE.read_text()).items():
        for pin in pins:
            name, _, version = pin.partition("==")
            if framework != "torch_tpu" or pin not in APART:
                assert tested[normal(name)] == version, pin


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
