"""The diagnosis: what is right, what is wrong, and what to do about it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from converters.remote.ready import ready
from migrate.cli import commands
from migrate.doctor import (
    Check,
    Diagnosis,
    Readiness,
    Status,
    _probe,
    check_commands,
    check_gpus,
    check_places,
    check_torch_tpu,
    check_torch_tpu_commands,
    check_variables,
    check_versions,
)
from migrate.gpus import gpu_names, parse_names
from migrate.report.text.doctor import diagnosis_as_json

GOOD = {
    "tpu-migrate": "0.1.0",
    "torch": "2.9.1",
    "torch_xla": "2.9.0",
    "jax": "0.10.2",
    "flax": "0.12.8",
    "libtpu": None,
}


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("XLA_USE_BF16", "1", Status.FAIL),
        ("XLA_DOWNCAST_BF16", "1", Status.FAIL),
        ("CPU_NUM_DEVICES", "4", Status.FAIL),
        ("PJRT_DEVICE", "CUDA", Status.FAIL),
        ("PJRT_DEVICE", "TPU", Status.FAIL),
        ("JAX_PLATFORMS", "tpu", Status.FAIL),
        ("XRT_TPU_CONFIG", "localservice;0;localhost:51011", Status.WARNING),
        ("XLA_FLAGS", "--xla_force_host_platform_device_count=8", Status.WARNING),
    ],
)
def test_wrong_variables(name: str, value: str, status: Status) -> None:
    (check,) = check_variables({name: value}, has_tpu=False)
    assert (check.subject, check.status) == (name, status)
    assert check.remedy


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"XLA_USE_BF16": "0"},
        {"PJRT_DEVICE": "CPU", "JAX_PLATFORMS": "cpu"},
        {"CPU_NUM_DEVICES": "1"},
    ],
)
def test_right_variables(environment: dict[str, str]) -> None:
    assert list(check_variables(environment, has_tpu=False)) == []


def test_variables_that_keep_off_a_tpu() -> None:
    environment = {"PJRT_DEVICE": "CPU", "JAX_PLATFORMS": "cpu"}
    checks = list(check_variables(environment, has_tpu=True))
    assert [check.status for check in checks] == [Status.WARNING, Status.WARNING]


def test_versions_that_fit() -> None:
    checks = {check.subject: check for check in check_versions(GOOD, has_tpu=False)}
    assert all(check.status in (Status.OK, Status.MISSING) for check in checks.values())
    assert checks["libtpu"].status is Status.MISSING
    assert "pip install" in checks["libtpu"].remedy


@pytest.mark.parametrize(("has_tpu", "status"), [(True, Status.WARNING), (False, Status.OK)])
def test_the_libtpu_of_jax_disturbs_torch_xla_on_a_tpu_only(has_tpu: bool, status: Status) -> None:
    checks = check_versions({**GOOD, "libtpu": "0.0.42.1"}, has_tpu=has_tpu)
    (check,) = [check for check in checks if check.subject == "libtpu"]
    assert check.status is status
    assert "0.0.42.1 belongs to jax" in check.detail


def test_versions_that_do_not_fit() -> None:
    checks = list(check_versions({**GOOD, "torch": "2.13.0+cpu"}, has_tpu=False))
    (failed,) = [check for check in checks if check.status is Status.FAIL]
    assert failed.remedy == "pip install 'torch==2.9.*'"


def test_what_is_missing_has_its_command() -> None:
    nothing = dict.fromkeys(GOOD)
    for check in check_versions(nothing, has_tpu=False):
        assert check.status is Status.MISSING
        assert "pip install" in check.remedy


def test_this_environment_is_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(commands, ["doctor", "--json"])
    diagnosis = json.loads(done.stdout)
    assert done.exit_code == 0, diagnosis
    found = {check["subject"]: check["detail"] for check in diagnosis["checks"]}
    assert found["torch"].startswith("2.9.")
    assert "CPU" in found["torch_xla devices"].upper()
    assert "CPU" in found["jax devices"].upper()


def test_a_wrong_variable_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_USE_BF16", "1")
    monkeypatch.setattr("migrate.doctor.PROBES", {})  # the runtimes are asked in the test above
    done = CliRunner().invoke(commands, ["doctor"])
    assert done.exit_code == 1
    assert "unset XLA_USE_BF16" in done.stdout


def test_places_of_checkpoints(tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text("5ecret")
    given = {"HF_TOKEN": "hf_5ecret", "AZURE_STORAGE_ACCOUNT_KEY": "5ecret"}
    hub, gs, s3, azure = ready(given, tmp_path)
    assert hub.credentials == "HF_TOKEN"
    assert s3.credentials == "~/.aws/credentials"
    assert azure.credentials == "AZURE_STORAGE_ACCOUNT_KEY"
    places = [
        replace(hub, version="2.4"),
        replace(gs, version="1", credentials=""),
        replace(s3, version=None),
        replace(azure, version="2"),
    ]
    checks = list(check_places(places))
    assert [check.status for check in checks] == [Status.OK, Status.OK, Status.OPTIONAL, Status.OK]
    assert checks[0].detail == "2.4, credentials: HF_TOKEN"
    assert "public buckets only" in checks[1].detail
    assert "gcloud auth application-default login" in checks[1].remedy
    assert checks[2].detail == "optional: for checkpoints at s3://"
    assert checks[2].remedy == "pip install '.[s3]'"
    assert "5ecret" not in repr(checks)


def commands_of(missing: tuple[str, ...], *checks: Check) -> dict[str, Readiness]:
    return {entry.command: entry for entry in check_commands(checks, missing)}


def test_commands_are_ready_or_not() -> None:
    entries = commands_of(("torch_xla", "libtpu"))
    ready = [name for name, entry in entries.items() if entry.ready]
    assert ready == ["rewrite", "check", "weights", "port", "train", "parity", "launch"]
    assert (entries["run"].obstacle, entries["run"].remedy) == (
        "torch_xla not installed",
        "pip install '.[xla]'",
    )
    assert entries["fit"].remedy == "pip install '.[xla,tpu]'"


def test_a_framework_that_does_not_start_stops_its_commands() -> None:
    (failed,) = [
        check for check in check_versions({**GOOD, "torch": "2.13.0"}, has_tpu=False) if check.stops
    ]
    entries = commands_of((), failed)
    assert not entries["run"].ready
    assert "torch is 2.13.0" in entries["run"].obstacle
    assert entries["run"].remedy == "pip install 'torch==2.9.*'"
    assert entries["port"].ready


def test_nothing_that_runs_is_not_fit() -> None:
    for missing, fit in ((("torch", "torch_xla", "jax", "flax", "libtpu"), False), ((), True)):
        diagnosis = Diagnosis((), tuple(check_commands((), missing)))
        assert (diagnosis.sound, diagnosis.fit) == (True, fit)
        assert diagnosis_as_json(diagnosis)["fit"] is fit


def test_gpus_have_names() -> None:
    assert parse_names("NVIDIA H100 80GB HBM3, 81559\nTesla T4, 15360\n") == (
        "NVIDIA H100 80GB HBM3 (80 GiB)",
        "Tesla T4 (15 GiB)",
    )
    (gpu,) = check_gpus(["Tesla T4 (15 GiB)"] * 2, lambda: 2)
    assert (gpu.status, gpu.detail) == (Status.OK, "2 × Tesla T4 (15 GiB)")
    _, unused = check_gpus(["Tesla T4"], lambda: 0)
    assert unused.status is Status.WARNING
    (none,) = check_gpus([], lambda: None)
    assert none.detail.startswith("no GPU here")


def test_gpus_without_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_names(tmp_path) == ()
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    assert gpu_names(tmp_path) == (str(tmp_path / "dev" / "nvidia0"),)
    folder = tmp_path / "proc" / "driver" / "nvidia" / "gpus" / "0000:01:00.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text("Model: \t\t NVIDIA L4\nIRQ: 74\n")
    assert gpu_names(tmp_path) == ("NVIDIA L4",)


TORCH_TPU = {"torch": "2.13.0+cpu", "torch_tpu": "0.2.0", "lammps-jax-pjrt-cpu": "0.11.2"}


@pytest.mark.parametrize(
    ("changed", "subject", "status", "words"),
    [
        ({"torch_tpu": None}, "torch_tpu", Status.OPTIONAL, "optional: for run --target torch_tpu"),
        ({"torch": "2.9.1"}, "torch / torch_tpu", Status.FAIL, "needs torch 2.11 to 2.15"),
        ({"torch_xla": "2.9.0"}, "torch_xla / torch_tpu", Status.FAIL, "same environment"),
        ({"torch": "2.14.0"}, "simulated TPU", Status.WARNING, "tested with 2.13"),
        ({"torch_tpu": "0.3.0"}, "simulated TPU", Status.WARNING, "tested with 0.2.0"),
        ({"lammps-jax-pjrt-cpu": None}, "simulated TPU", Status.WARNING, "not installed"),
        ({"lammps-jax-pjrt-cpu": "0.12"}, "simulated TPU", Status.WARNING, "tested with 0.11.2"),
    ],
)
def test_what_does_not_go_with_torch_tpu(
    changed: dict[str, str | None], subject: str, status: Status, words: str
) -> None:
    versions = {**TORCH_TPU, **changed}
    checks = list(check_torch_tpu(has_tpu=False, version_of=versions.get))
    (wrong,) = [check for check in checks if check.status is not Status.OK]
    assert (wrong.subject, wrong.status) == (subject, status)
    assert words in wrong.detail
    assert "\n" not in wrong.detail
    assert "install-torch-tpu" in wrong.remedy
    commands = list(check_torch_tpu_commands(checks, 0))
    assert [entry.ready for entry in commands] == [False] * 3 * (status is not Status.OPTIONAL)
    assert {entry.obstacle for entry in commands} <= {wrong.detail}


def test_versions_that_go_with_torch_tpu() -> None:
    checks = list(check_torch_tpu(has_tpu=False, version_of=TORCH_TPU.get))
    assert [check.status for check in checks] == [Status.OK]
    assert [entry.ready for entry in check_torch_tpu_commands(checks, 0)] == [True] * 3
    (on_tpu, *_) = check_torch_tpu_commands(checks, 4)
    assert (on_tpu.obstacle, on_tpu.remedy) == (
        "runs on simulated TPUs only",
        "PJRT_DEVICE=CPU simulates one",
    )
    # On a TPU nothing is simulated.
    newer = {**TORCH_TPU, "torch": "2.15.0", "lammps-jax-pjrt-cpu": None}
    assert [c.status for c in check_torch_tpu(has_tpu=True, version_of=newer.get)] == [Status.OK]
    # Nobody knows which torch another torch_tpu needs.
    later = {**TORCH_TPU, "torch_tpu": "0.3.0", "torch": "2.16.0"}
    assert [c.status for c in check_torch_tpu(has_tpu=True, version_of=later.get)] == [Status.OK]
    simulated = list(check_torch_tpu(has_tpu=False, version_of=later.get))
    assert [c.status for c in simulated] == [Status.OK, Status.WARNING, Status.WARNING]


def test_a_number_of_ranks_that_no_host_has() -> None:
    environment = {"MIGRATE_BACKEND": "tpu", "MIGRATE_RANKS": "3"}
    (check,) = check_variables(environment, has_tpu=False)
    assert check.status is Status.FAIL
    assert "no TPU host has 3 chips" in check.detail
    assert list(check_variables({**environment, "MIGRATE_RANKS": "4"}, has_tpu=False)) == []


def test_a_plugin_that_does_not_load_is_one_line(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.so"
    plugin.write_text("no library")
    code = (
        "from pathlib import Path; from shims._simulated_tpu import plugin;"
        f"plugin.prepare(Path({str(plugin)!r}))"
    )
    check = _probe("torch_tpu", code, has_tpu=False)
    assert (check.subject, check.status, check.stops) == (
        "torch_tpu devices",
        Status.FAIL,
        ("torch_tpu",),
    )
    assert check.detail.startswith(f"the PJRT plugin {plugin} does not load: ")
    assert check.remedy == "install the package again"
    assert "\n" not in check.detail
