"""The probe of the chips: sound ones pass, a bad one is named, on simulated devices with planted faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from migrate.cli import commands
from migrate.devices.examine import ProbeOptions, examine
from migrate.devices.faults import KINDS, lost_chip, plant
from migrate.devices.judge import judge
from migrate.devices.probe import ChipProbe, Events, collected
from migrate.devices.programs import (
    ALL_REDUCE,
    ChipJob,
    checksum,
    digest,
    jobs,
    lost_contribution,
    not_finite,
)
from migrate.devices.report import Chip, DevicesReport
from tests.waiting import LIMIT

EIGHT = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}


class Simulated:
    """Chips that compute with numpy: see `probe.Chips`."""

    runtime, platform = "numpy", "cpu"
    left_out: Mapping[str, str] = {}

    def __init__(self, count: int) -> None:
        self.chips = tuple(Chip(10 + place, "simulated", "", "here") for place in range(count))

    def prepared(self, job: ChipJob) -> Any:
        values = [one.astype(np.float32) for one in job.inputs]
        if job.kind == "all-reduce":
            made = values[0].sum(0)
        elif job.kind == "matmul":
            made = values[0] @ values[1]
        else:
            powers = np.exp(values[0] - values[0].max(-1, keepdims=True))
            made = powers / powers.sum(-1, keepdims=True)
        return lambda: {chip.id: made.copy for chip in self.chips}


def probed(folder: Path, fault: str = "", chips: int = 4, **options: Any) -> DevicesReport:
    given = {"repeats": 3, "size": 32, "answer_seconds": 0.5, "fault": fault} | options
    file = folder / "events"
    ChipProbe(Simulated(chips), Events(file), given).run()
    return judge([json.loads(line) for line in file.read_text().splitlines()], 0.0)


def test_sound_chips_are_sound(tmp_path: Path) -> None:
    report = probed(tmp_path)
    assert report.sound, report.findings
    assert [program.same for program in report.programs] == [4] * 6
    assert (report.repeats, report.size, report.runtime) == (3, 32, "numpy")


@pytest.mark.parametrize(
    ("fault", "kind", "chips", "words"),
    [
        ("12:bit", "differs", (12,), "chip 12 (here) always differs from the others in matmul"),
        ("12:flaky", "flaky", (12,), "2 results in 3 repeats"),
        ("11:nan", "not finite", (11,), "softmax float32 (1 in 3 of 3 repeats)"),
        ("13:hang", "no answer", (13,), "did not answer in matmul float32"),
        ("10:lost", "all-reduce", (10,), "the part of chip 10 (here) is missing in the sum of all"),
    ],
)
def test_a_bad_chip_is_named(
    fault: str, kind: str, chips: tuple[int, ...], words: str, tmp_path: Path
) -> None:
    (finding,) = probed(tmp_path, fault).findings
    assert (finding.kind, finding.chips) == (kind, chips)
    assert words in finding.text
    assert finding.remedy


def test_a_chip_that_hangs_keeps_the_others_from_hanging_too(tmp_path: Path) -> None:
    report = probed(tmp_path, "13:hang")
    assert "a chip does not answer" in report.notes[0]
    assert [program.same for program in report.programs] == [3] * 5


def test_all_wrong_in_the_same_way_is_no_chips_fault(tmp_path: Path) -> None:
    report = probed(tmp_path, "0:everywhere")
    assert {finding.kind for finding in report.findings} == {"all wrong"}
    assert not any(finding.chips for finding in report.findings)
    assert "more than 1e-06" in " ".join(finding.text for finding in report.findings)


def test_of_two_chips_the_one_far_from_the_truth_is_bad(tmp_path: Path) -> None:
    kinds = {finding.kind: finding.chips for finding in probed(tmp_path, "11:bit", 2).findings}
    # The last bit of a float32 result tells nothing; that of an integer does.
    assert kinds == {"disagree": (10, 11), "differs": (11,)}


def test_one_chip_is_compared_with_itself(tmp_path: Path) -> None:
    report = probed(tmp_path, "10:flaky", 1)
    assert [(finding.kind, finding.chips) for finding in report.findings] == [("flaky", (10,))]


def test_one_sound_chip_is_sound(tmp_path: Path) -> None:
    assert probed(tmp_path, "", 1).sound


def test_a_fault_of_one_exchange_is_told_from_a_bad_chip(tmp_path: Path) -> None:
    file = tmp_path / "events"
    ChipProbe(
        Simulated(3), Events(file), {"repeats": 2, "size": 8, "answer_seconds": 1, "fault": ""}
    ).run()
    events = [json.loads(line) for line in file.read_text().splitlines()]
    for event in events:
        if event["event"] == "result" and event["op"] == ALL_REDUCE and event["chip"] == 11:
            event.update(error=0.5, digest="other")
    (finding,) = judge(events, 0.0).findings
    assert (finding.kind, finding.chips) == ("all-reduce", (11,))
    assert "the sum is wrong on 11, in 2 of 2 repeats" in finding.text


def test_a_program_that_does_not_run_is_a_finding(tmp_path: Path) -> None:
    class Old(Simulated):
        def prepared(self, job: ChipJob) -> Any:
            if "int8" in job.name:
                raise NotImplementedError("no such unit\nmore")
            return super().prepared(job)

    file = tmp_path / "events"
    ChipProbe(
        Old(2), Events(file), {"repeats": 2, "size": 8, "answer_seconds": 1, "fault": ""}
    ).run()
    report = judge([json.loads(line) for line in file.read_text().splitlines()], 0.0)
    (finding,) = report.findings
    assert (finding.kind, finding.chips) == ("failed", ())
    assert "matmul int8 does not run" in finding.text
    assert "NotImplementedError: no such unit" in finding.text


def test_a_chip_that_raises_is_named(tmp_path: Path) -> None:
    def fails() -> Any:
        raise RuntimeError("INTERNAL: core halted")

    found = collected({1: lambda: np.ones(2), 2: fails}, 5)
    assert isinstance(found[2], RuntimeError)
    assert isinstance(found[1], np.ndarray)


def test_sums_tell_one_bit() -> None:
    one = np.arange(12, dtype=np.float32).reshape(3, 4)
    other = one.copy()
    other.view(np.uint32)[1, 1] ^= 1
    assert int(checksum(one), 16) == int(one.view(np.uint32).sum(dtype=np.uint64))
    assert abs(int(checksum(one), 16) - int(checksum(other), 16)) == 1
    # Two that changed places have the same sum; the digest tells them apart.
    assert checksum(one) == checksum(one[::-1])
    assert digest(one) != digest(one[::-1])
    assert not_finite(np.array([1, np.nan, np.inf])) == 2
    assert not_finite(np.array([1, 2], np.int32)) == 0


def test_what_a_sum_lacks_is_known() -> None:
    (job,) = [job for job in jobs(8, 3) if job.name == ALL_REDUCE]
    (parts,) = job.inputs
    assert lost_contribution(parts[0] + parts[2], job) == 1
    assert lost_contribution(parts.sum(0), job) is None
    assert lost_contribution(parts.sum(0) + 1, job) is None


@pytest.mark.parametrize("wrong", ["3", "x:bit", "3:else", ":bit"])
def test_a_fault_of_no_known_form_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="write ID:KIND"):
        plant(wrong)
    done = CliRunner().invoke(commands, ["doctor", "--devices", "--plant", wrong])
    assert done.exit_code == 2


def test_every_fault_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "devices.md").read_text()
    assert all(f"`{kind}`" in page for kind in KINDS)
    assert lost_chip("4:lost") == 4


def test_eight_devices_of_jax_and_a_planted_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in EIGHT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("migrate.doctor.PROBES", {})  # asked in the tests of the doctor
    arguments = ["doctor", "--devices", "--repeats", "2", "--json", "--plant", "5:bit"]
    done = CliRunner().invoke(commands, arguments)
    assert done.exit_code == 1, done.output
    value = json.loads(done.stdout)
    assert value["fit"] is False
    devices = value["devices"]
    assert len(devices["chips"]) == 8
    assert [program["same"] for program in devices["programs"]] == [7, 7, 7, 7, 8, 8]
    assert all(program["error"] <= program["limit"] for program in devices["programs"])
    (finding,) = devices["findings"]
    assert (finding["kind"], finding["chips"]) == ("differs", [5])


@pytest.mark.long
@pytest.mark.parametrize("fault", ["", "1:flaky", "2:hang", "6:lost"])
def test_more_faults_on_devices_of_jax(fault: str) -> None:
    options = ProbeOptions(repeats=2, answer_seconds=3, fault=fault)
    report = examine(options, dict(os.environ) | EIGHT)
    assert report.sound is (not fault)
    assert {chip for finding in report.findings for chip in finding.chips} == (
        {int(fault[0])} if fault else set()
    )


@pytest.mark.long
@pytest.mark.xla
def test_devices_of_torch_xla() -> None:
    environment = dict(os.environ) | {"CPU_NUM_DEVICES": "4", "PJRT_DEVICE": "CPU"}
    report = examine(ProbeOptions(repeats=2, runtime="torch_xla", fault="2:bit"), environment)
    assert [finding.chips for finding in report.findings] == [(2,)]
    assert len(report.chips) == 4
    assert "all-reduce" in report.notes[0]


COMPILE = """
import sys

import jax
from jax.experimental import topologies

from migrate.devices.jax import mesh_of, program
from migrate.devices.programs import jobs

topology = topologies.get_topology_desc(sys.argv[1], platform="tpu")
mesh = mesh_of(topology.devices)
for job in jobs(2048, len(topology.devices)):
    jitted, given = program(mesh, job)
    shapes = [jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=given) for one in job.inputs]
    text = jitted.lower(*shapes).compile().as_text()
    assert ("all-reduce" in text) is (job.kind == "all-reduce"), job.name
    assert "custom-call" not in text or job.kind == "softmax", job.name
    print(job.name)
"""


@pytest.mark.long
@pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is not installed")
@pytest.mark.parametrize("topology", ["v5e:2x4", "v5p:2x2x1"])
def test_the_programs_compile_for_a_tpu(topology: str) -> None:
    environment = dict(os.environ) | {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    ran = subprocess.run(
        [sys.executable, "-c", COMPILE, topology],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert len(ran.stdout.splitlines()) == 6


def test_a_runtime_that_does_not_start_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    report = examine(ProbeOptions())
    (finding,) = report.findings
    assert (finding.kind, report.chips) == ("died", ())
    assert "when the runtime started (exit code 1)" in finding.text


def test_a_runtime_that_hangs_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = tmp_path / "hangs"
    hangs.write_text("#!/bin/sh\nsleep 60\n")
    hangs.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(hangs))
    report = examine(ProbeOptions(seconds=0.5))
    (finding,) = report.findings
    assert (finding.kind, finding.chips) == ("hung", ())
    assert "did not end within 0.5 s" in finding.text
    assert report.seconds < 10
