"""The gallery of ports is what `migrate port` writes now."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.zoo_models.gallery import PIECES
from migrate.versions import installed

ROOT = Path(__file__).parents[1]
GALLERY = ROOT / "docs" / "gallery"
QUICK = ("mlp", "lstm_tagger")
MADE = sorted(path.parent.name for path in GALLERY.glob("*/modeling.py"))


def check(*names: str) -> None:
    command = [sys.executable, "-W", "ignore", ROOT / "docs" / "gallery.py", "--check", *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def needs(name: str) -> str:
    """The package that a piece's page was made with, and its version."""
    page = " ".join((GALLERY / name / "README.md").read_text().split())
    return page.partition("(")[2].partition(")")[0]


def test_all_that_is_there_has_a_piece_and_stands_in_the_index() -> None:
    assert set(MADE) <= set(PIECES)
    index = (GALLERY / "README.md").read_text()
    assert all(f"({name}/modeling.py)" in index for name in MADE)


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.long_cases("lstm_tagger")
def test_small_ones_are_as_they_are_written_now(name: str) -> None:
    _as_written(name)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in MADE if name not in QUICK])
def test_all_are_as_they_are_written_now(name: str) -> None:
    _as_written(name)


def _as_written(name: str) -> None:
    package, _, version = needs(name).partition(" ")
    if installed(package) != version:
        pytest.skip(f"made with {package} {version}")
    check(name)


def test_losses_on_8_devices_are_those_of_one() -> None:
    page = (GALLERY / "llama_mesh" / "README.md").read_text()
    rows = re.findall(r"^step +\d+: 8 devices ([\d.]+), one device ([\d.]+)$", page, re.MULTILINE)
    losses = np.array(rows, float)
    assert losses.shape == (10, 2)
    # The rounding of bfloat16.
    np.testing.assert_allclose(losses[:, 0], losses[:, 1], rtol=2**-8)
    assert losses[-1].max() < losses[0].min() / 2
    assert "nnx equals linen: yes" in page.splitlines()


@pytest.mark.long
def test_llama_on_8_devices_prints_what_its_page_says() -> None:
    command = [sys.executable, "-W", "ignore", ROOT / "docs" / "gallery_mesh.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_a_port_passes_ruff_and_mypy() -> None:
    folder = GALLERY / "llama"
    ruff = [sys.executable, "-m", "ruff"]
    # mypy as a user has it, without this project's settings.
    mypy = [sys.executable, "-m", "mypy", "--config-file=", "--ignore-missing-imports"]
    rules = ["--isolated", "--select", "E,F,W,I,UP,B,SIM", "--line-length", "100"]
    for command in (
        [*ruff, "check", *rules, "--no-cache", folder],
        [*ruff, "format", "--check", "--isolated", "--line-length", "100", "--no-cache", folder],
        [*mypy, "--follow-imports=silent", "--cache-dir=/dev/null", folder / "modeling.py"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.returncode == 0, done.stdout + done.stderr
