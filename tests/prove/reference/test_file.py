"""The file of a record: whole or not there, and told apart from all that is none."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from migrate.prove.compare.noise_floor import NoiseFloor, StepFloor
from migrate.prove.errors import ReferenceFileError
from migrate.prove.recording.machine import Machine
from migrate.prove.reference import file, words
from migrate.prove.reference.against import read_for
from migrate.prove.reference.file import FORMAT, Reference
from migrate.prove.reference.sources import digests
from migrate.prove.settings import SEED

FLOOR = NoiseFloor(
    (StepFloor(1, 0, 2e-6, {"w": 1e-6}, {"w": 3e-6}, 4e-6),), {"w": 5e-6}, frozenset({"loss"}), 1
)
H100 = Machine(
    "cuda", "NVIDIA H100", ("cudnn.benchmark", "TF32 in convolutions"), {"torch": "2.9.1"}
)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "data.py").write_text("ROWS = 3\n")
    path = tmp_path / "train.py"
    path.write_text("import data\nprint(data.ROWS)\n")
    return path


@pytest.fixture
def reference(script: Path) -> Reference:
    return Reference(
        made_by="0.1.0",
        script="train.py",
        sources=digests(script),
        args=("--epochs", "1"),
        replicas=2,
        settings={"deterministic": True, "amp": "bf16", "steps": 3, "start": None},
        seed=SEED,
        seconds=1.5,
        machines={0: H100, 1: H100},
        floors=(FLOOR,),
        measured=("as it is",),
    )


@pytest.fixture
def record(tmp_path: Path, reference: Reference) -> Path:
    run = tmp_path / "run"
    run.mkdir()
    (run / "rank0.pid7.jsonl").write_text('{"rank": 0}\n')
    (run / "rank0.final.safetensors").write_bytes(b"12345" * 1000)
    (run / "observed").mkdir()
    path = tmp_path / "gpu.rec"
    file.write(path, reference, run)
    return path


def taken_out(record: Path, tmp_path: Path) -> tuple[Reference, Path]:
    out = tmp_path / "out"
    out.mkdir()
    return file.read(record, out), out


def test_what_was_written_is_read(record: Path, reference: Reference, tmp_path: Path) -> None:
    read, out = taken_out(record, tmp_path)
    assert read == reference
    assert sorted(path.name for path in out.iterdir()) == [
        "rank0.final.safetensors",
        "rank0.pid7.jsonl",
    ]
    assert (out / "rank0.final.safetensors").read_bytes() == b"12345" * 1000
    assert not list(tmp_path.glob(".*partial"))


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9, 0.999])
def test_one_that_is_cut_short_is_told(record: Path, tmp_path: Path, share: float) -> None:
    whole = record.read_bytes()
    record.write_bytes(whole[: max(8, int(len(whole) * share))])
    with pytest.raises(ReferenceFileError, match=r"gpu.rec is cut short or damaged"):
        taken_out(record, tmp_path)


def test_one_that_was_changed_on_its_way_is_told(record: Path, tmp_path: Path) -> None:
    record.write_bytes(record.read_bytes().replace(b"1234512345", b"1234512346", 1))
    with pytest.raises(ReferenceFileError, match="cut short or damaged"):
        taken_out(record, tmp_path)


@pytest.mark.parametrize("content", [b"", b"import torch\n", b"\x80\x04pickled"])
def test_another_file_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "gpu.rec"
    path.write_bytes(content)
    with pytest.raises(ReferenceFileError, match="is not a record of migrate prove"):
        taken_out(path, tmp_path)


def test_a_checkpoint_of_torch_is_no_record(tmp_path: Path) -> None:
    # These are archives of the same kind.
    path = tmp_path / "gpu.rec"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"x")
    with pytest.raises(ReferenceFileError, match="is not a record of migrate prove"):
        taken_out(path, tmp_path)


def test_another_format_is_told(tmp_path: Path) -> None:
    path = tmp_path / "gpu.rec"
    with zipfile.ZipFile(path, "w") as archive:
        index = {"format": FORMAT + 1, "made_by": "9.0"}
        archive.writestr("reference.json", json.dumps(index))
    with pytest.raises(ReferenceFileError, match=rf"format {FORMAT + 1} \(tpu-migrate 9.0\)"):
        taken_out(path, tmp_path)


def test_nothing_else_is_taken_out_of_an_archive(record: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(record, "a") as archive:
        archive.writestr("run/../evil.json", "{}")
        archive.writestr("run/rank0.sub/evil.json", "{}")
        archive.writestr("evil.json", "{}")
    taken_out(record, tmp_path)
    assert not list(tmp_path.rglob("evil.json"))


def test_a_place_that_cannot_be_written_is_told_before_anything_runs(tmp_path: Path) -> None:
    for path in (tmp_path / "none" / "gpu.rec", tmp_path):
        with pytest.raises(ReferenceFileError, match="cannot be written"):
            file.require_place(path)
    file.require_place(tmp_path / "gpu.rec")


@pytest.mark.parametrize(
    ("args", "asked", "said"),
    [
        (("--epochs", "2"), {}, "recorded with arguments '--epochs 1', not with '--epochs 2'"),
        ((), {"replicas": 4}, "recorded with --replicas 2, not 4"),
        ((), {"steps": 5}, "recorded with --steps 3, not 5"),
        ((), {"deterministic": False}, "recorded with --deterministic on, not off"),
        ((), {"start": "spawn"}, "recorded with --start not given, not spawn"),
    ],
)
def test_another_run_than_the_recorded_one_is_refused(
    record: Path, script: Path, tmp_path: Path, args: tuple[str, ...], asked: dict, said: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(ReferenceFileError, match=said) as refused:
        read_for(record, out, script, args, asked)
    assert "\n" not in str(refused.value)
    for same in ((), ("--epochs", "1")):
        assert read_for(record, out, script, same, {"replicas": 2, "steps": 3}).replicas == 2


def test_another_script_is_refused(record: Path, script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    renamed = script.rename(script.with_name("main.py"))
    # Windows ends its lines otherwise; a name is no content.
    renamed.write_bytes(renamed.read_bytes().replace(b"\n", b"\r\n"))
    assert read_for(record, out, renamed, (), {}).script == "train.py"
    data = script.with_name("data.py")
    data.write_text("ROWS = 4\n")
    with pytest.raises(ReferenceFileError, match=r"data.py is not as it was when"):
        read_for(record, out, renamed, (), {})
    renamed.write_text("print(1)\n")
    with pytest.raises(ReferenceFileError, match=r"main.py is not the train.py that ran when"):
        read_for(record, out, renamed, (), {})


def test_the_machine_and_its_modes_are_told(reference: Reference) -> None:
    assert words.beginning(reference) == (
        "against the record of 2 × NVIDIA H100, TF32 in convolutions, cudnn.benchmark: "
    )
    told = " ".join(words.notes(reference))
    assert "torch 2.9.1" in told
    assert "TF32, which keeps 11 of 24 bits" in told
    assert "as it is): up to 4.0e-06 in losses and gradient norms, 5.0e-06 in weights" in told
    assert "drawn on the host" in told
