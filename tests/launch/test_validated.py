"""Every launcher, four slices, three kinds of programs: the files are valid for their launcher."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from migrate.fit.products import product_named
from migrate.launch.check import Validation, check_files, check_ours
from migrate.launch.errors import InvalidJobError
from migrate.launch.explain import explain
from migrate.launch.host.settings import read_settings
from migrate.launch.launchers import gke
from migrate.launch.pipeline import launch
from tests.launch.jobs import LAUNCHERS, TARGETS, request, slices_of, trained_program, written

# An interpreter with the launchers' packages; this one by default.
PYTHON = os.environ.get("LAUNCH_PYTHON", sys.executable)
ASKED: dict[tuple[str, str], Validation] = {}
CASES = [
    pytest.param(
        launcher,
        tpu,
        framework,
        id=f"{launcher}-{tpu}-{framework}",
        # By default each kind of program on one slice, and each slice with one kind.
        marks=[pytest.mark.long] if place and framework != next(iter(TARGETS)) else [],
    )
    for launcher in LAUNCHERS
    for place, tpu in enumerate(slices_of(launcher))
    for framework in TARGETS
]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """Options of each kind of program; the JAX program is one that `migrate train` writes."""
    folder = trained_program(tmp_path_factory.mktemp("trained") / "jax_program")
    args = ("--checkpoints", "{checkpoints}", "--every", "500")
    return {
        **{framework: {"target": target} for framework, target in TARGETS.items()},
        "jax": {"target": folder, "args": args},
    }


@pytest.mark.parametrize(("launcher", "tpu", "framework"), CASES)
def test_the_files_of_a_job(
    launcher: str,
    tpu: str,
    framework: str,
    tmp_path: Path,
    programs: dict[str, dict[str, object]],
) -> None:
    zone = slices_of(launcher)[tpu]
    spot = tpu.startswith("v6e")
    job = written(tmp_path, launcher, tpu=tpu, zone=zone, spot=spot, **programs[framework])
    product = product_named(tpu)
    settings = read_settings(job.folder / "job.json", {})
    assert (settings.hosts, settings.chips) == (product.hosts, product.chips_per_host)
    assert settings.framework == framework
    assert settings.processes == ("chip" if framework == "torch_tpu" else "host")
    check_ours(job.job, job.folder)
    for path in job.folder.glob("*.y*ml"):
        assert yaml.safe_load(path.read_text())
    for path in job.folder.glob("*.sh"):
        subprocess.run(["bash", "-n", path], check=True)
    readme = (job.folder / "README.md").read_text()
    for name in ("create", "watch", "resume", "stop", "clean"):
        (row,) = [line for line in readme.splitlines() if line.startswith(f"| {name} | `")]
        assert row.count("|") == 3  # another one would end the cell
    assert (job.folder / "program" / settings.entry).is_file()
    assert (
        f"{framework.replace('jax', 'jax[tpu]')}" in (job.folder / "requirements.txt").read_text()
    )


@pytest.mark.parametrize(("launcher", "tpu", "framework"), CASES)
def test_the_launchers_own_parser(
    launcher: str,
    tpu: str,
    framework: str,
    tmp_path: Path,
    programs: dict[str, dict[str, object]],
) -> None:
    zone = slices_of(launcher)[tpu]
    job = written(tmp_path, launcher, tpu=tpu, zone=zone, name="job", **programs[framework])
    # The launcher's own file may be the same for another kind of program: its parser reads it once.
    key = launcher, job.files[0].text
    if key not in ASKED:
        ASKED[key] = check_files(job.job, job.folder, PYTHON)
    validation = ASKED[key]
    if not validation.ran:
        pytest.skip(f"{validation.validator}; {validation.install}")


@pytest.mark.parametrize(
    ("launcher", "file", "before", "after"),
    [
        ("skypilot", "task.yaml", "num_nodes", "num_node"),
        ("gke", "job.yaml", "completionMode", "completionModes"),
        ("dstack", "train.dstack.yml", "spot_policy", "spot_policies"),
        ("gcloud", "create.sh", "--node-id", "--node-name"),
        ("gcloud", "requeue.sh", "--force", "--forced"),
    ],
)
def test_a_parser_refuses_a_planted_fault(
    launcher: str, file: str, before: str, after: str, tmp_path: Path
) -> None:
    tpu = next(iter(slices_of(launcher)))
    job = written(tmp_path, launcher, tpu=tpu, zone=slices_of(launcher)[tpu])
    if not check_files(job.job, job.folder, PYTHON).ran:
        pytest.skip(f"the package of {launcher} is not installed")
    path = job.folder / file
    path.write_text(path.read_text().replace(before, after))
    with pytest.raises(InvalidJobError, match="refuses"):
        check_files(job.job, job.folder, PYTHON)


def test_a_parser_gets_a_file_of_a_relative_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parser runs in another folder."""
    monkeypatch.chdir(tmp_path)
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\ncat "$3" > read && echo 1.2\n')
    python.chmod(0o755)
    job = launch(request(Path(), "skypilot"), check=True, python=str(python))
    assert job.validation == Validation("SkyPilot 1.2", True)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("v5litepod-16", "v5litepod-7", "does not name v5litepod-16"),
        ("pricing:", "prices:", "reads no tpu.prices"),
        ("gcsfuse:", "gcsfuses:", "no section gcsfuses"),
        ("gcsfuse:", "ssh: null\ngcsfuse:", "fails where ssh is empty"),
        ("ondemand", "cheap", "one of spot"),
    ],
)
def test_our_own_check_of_jobman(before: str, after: str, said: str, tmp_path: Path) -> None:
    job = written(tmp_path, "jobman")
    path = job.folder / "jobman.yaml"
    path.write_text(path.read_text().replace(before, after))
    with pytest.raises(InvalidJobError, match=said):
        check_ours(job.job, job.folder)


def test_what_skypilot_lets_pass_our_table_does_not(tmp_path: Path) -> None:
    job = written(tmp_path, "skypilot")
    path = job.folder / "task.yaml"
    path.write_text(path.read_text().replace("v5litepod-16", "v5litepod-7"))
    with pytest.raises(InvalidJobError, match="does not name"):
        check_files(job.job, job.folder, PYTHON)


@pytest.mark.parametrize("framework", TARGETS)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_each_line_has_a_meaning(
    launcher: str, framework: str, tmp_path: Path, programs: dict[str, dict[str, object]]
) -> None:
    """One host and several have different files."""
    for tpu in dict.fromkeys((next(iter(slices_of(launcher))), "v5e-8")):
        options: dict[str, object] = {"tpu": tpu, "spot": True, "environment": ("A=b",)}
        options |= {"data": "gs://lab/data", **programs[framework]}
        options["args"] = (*options.get("args", ("--run", "{checkpoints}")), "{data}")  # type: ignore[misc]
        job = written(tmp_path / tpu, launcher, **options)
        for file in job.files:
            meanings = list(explain(file))
            assert [meaning for meaning in meanings if not meaning.text] == []
            assert meanings or file.name == "README.md"


def test_a_slice_of_several_hosts_is_a_jobset(tmp_path: Path) -> None:
    job = written(tmp_path, "gke", spot=True)
    values = yaml.safe_load((job.folder / "job.yaml").read_text())
    assert values["kind"] == "JobSet"
    spec = gke.inner_job(values)["spec"]
    assert spec["completions"] == spec["parallelism"] == 4
    pod = spec["template"]["spec"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4",
        "topology.kubernetes.io/zone": "us-central1-a",
        "cloud.google.com/gke-spot": "true",
    }
    assert pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": 4}


def test_a_folder_is_copied_whole_and_a_script_with_what_it_imports(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", "gcloud", "jax").folder / "program"
    assert sorted(path.name for path in folder.iterdir()) == ["model.py", "train.py"]
    script = written(tmp_path / "b", "gcloud").folder / "program"
    assert [path.name for path in script.iterdir()] == ["xla_script.py"]


def test_the_settings_are_those_of_the_job(tmp_path: Path) -> None:
    job = written(tmp_path, environment=("A=b=c",), patience=5)
    values = json.loads((job.folder / "job.json").read_text())
    assert values["environment"] == {"A": "b=c"}
    assert values["patience"] == 5
    assert values["bucket"] == "gs://lab-runs/exp-1"
