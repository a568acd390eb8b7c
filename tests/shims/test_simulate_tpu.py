"""What is refused before a TPU is simulated, without torch_tpu: one line each, exit code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shims._simulated_tpu import versions
from shims.errors import NotSimulatedError
from tests.waiting import LIMIT

CONFTEST = Path(__file__).parents[1] / "conftest.py"
TESTED = {"torch": "2.13.0+cpu", "torch_tpu": "0.2.0", "lammps-jax-pjrt-cpu": "0.11.2"}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, []),
        ({"torch_tpu": None}, ["torch_tpu is not installed"]),
        ({"torch": "2.10.0"}, ["needs torch 2.11 to 2.15, and torch is 2.10.0"]),
        ({"torch": "2.16.0"}, ["needs torch 2.11 to 2.15"]),
        ({"torch": "2.12.1"}, ["torch is 2.12.1, and the simulation of a TPU is tested with 2.13"]),
        ({"torch": "2.9.1", "torch_xla": "2.9.0"}, ["needs torch", "in the same environment"]),
        ({"lammps-jax-pjrt-cpu": "0.11.3"}, ["lammps-jax-pjrt-cpu is 0.11.3"]),
    ],
)
def test_versions_are_checked(changed: dict[str, str | None], words: list[str]) -> None:
    installed = {**TESTED, **changed}
    problems = versions.problems_of_simulation(installed.get)
    assert len(problems) == len(words)
    for problem, word in zip(problems, words, strict=True):
        assert word in problem.what
        assert "\n" not in problem.what + problem.remedy


@pytest.mark.parametrize("ranks", [0, 3, 5, 16])
def test_a_number_of_ranks_that_no_host_has(ranks: int) -> None:
    with pytest.raises(NotSimulatedError, match=f"no TPU host has {ranks} chips"):
        versions.require_host(ranks)


@pytest.mark.parametrize("version", ["0.2.1", "0.3.0"])
def test_another_torch_tpu_needs_a_torch_that_is_not_known(version: str) -> None:
    installed = {**TESTED, "torch_tpu": version, "torch": "2.16.0"}
    assert versions.problems(installed.get) == []
    (problem,) = versions.problems({**installed, "torch": None}.get)
    assert problem.what == f"torch_tpu {version} needs torch, and torch is None"


@pytest.mark.parametrize("missing", [None, "torch_tpu", "lammps-jax-pjrt-cpu"])
def test_tests_of_wrong_versions_are_not_skipped(
    missing: str | None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    wrong = {**TESTED, "torch": "2.10.0", "torch_tpu": "0.1.0", "lammps-jax-pjrt-cpu": "0.1"}
    monkeypatch.setattr(
        versions, "installed", {**wrong, **({missing: None} if missing else {})}.get
    )
    marked = []

    class Marked:
        def get_closest_marker(self, name: str) -> str | None:
            return name if name == "torch_tpu" else None

        def add_marker(self, marker: pytest.MarkDecorator) -> None:
            marked.append(marker.kwargs["reason"])

    plugins = request.config.pluginmanager
    conftest = next(p for p in plugins.get_plugins() if getattr(p, "__file__", "") == str(CONFTEST))
    conftest.pytest_collection_modifyitems([Marked()])
    assert marked == ([f"{missing} is not installed"] if missing else [])


def test_python_m_shims_says_it_in_one_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    command = [sys.executable, "-m", "shims", "--backend", "tpu", "--ranks", "3", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    simulated = not versions.problems_of_simulation()
    assert ("no TPU host has 3 chips" if simulated else "install-torch-tpu") in line
