"""The diagnosis: what is right, what is wrong, and what to do about it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from converters.remote.ready import ready
from migrate.cli import commands
from migrate.doctor import Status, check_places, check_variables, check_versions

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
    checks = {check.subject: check for check in check_versions(GOOD)}
    assert all(check.status in (Status.OK, Status.MISSING) for check in checks.values())
    assert checks["libtpu"].status is Status.MISSING
    assert "pip install" in checks["libtpu"].remedy


def test_versions_that_do_not_fit() -> None:
    checks = list(check_versions({**GOOD, "torch": "2.13.0+cpu"}))
    (failed,) = [check for check in checks if check.status is Status.FAIL]
    assert failed.remedy == "pip install 'torch==2.9.*'"


def test_what_is_missing_has_its_command() -> None:
    nothing = dict.fromkeys(GOOD)
    for check in check_versions(nothing):
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
    assert [check.status for check in checks] == [Status.OK, Status.OK, Status.MISSING, Status.OK]
    assert checks[0].detail == "2.4, credentials: HF_TOKEN"
    assert "public buckets only" in checks[1].detail
    assert "gcloud auth application-default login" in checks[1].remedy
    assert checks[2].remedy == 'pip install "tpu-migrate[s3]"'
    assert "5ecret" not in repr(checks)
