"""An original is recorded where it runs, and the rewrite held against that: CPU to CPU, GPU to CPU."""

from __future__ import annotations

import json
import socket
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from migrate.cli import commands
from migrate.prove.compare.verdict import ProofVerdict
from migrate.prove.reference.against import prove_against
from tests.waiting import LIMIT

TOY = Path(__file__).parents[3] / "examples" / "ddp_toy"
# Draws on the device, and before the first step: what a GPU draws otherwise from the same seed.
NOISY = (
    (
        "inputs, labels = inputs.to(rank), labels.to(rank)",
        "inputs, labels = inputs.to(rank), labels.to(rank)\n"
        "            inputs = inputs + 0.1 * torch.randn_like(inputs)",
    ),
    ("dist.init_process_group(", "torch.manual_seed(7 + rank)\n    dist.init_process_group("),
)


def migrate(*args: object) -> Result:
    return CliRunner().invoke(commands, [str(arg) for arg in args])


def script(folder: Path) -> Path:
    text = (TOY / "before.py").read_text()
    for old, new in NOISY:
        assert text.count(old) == 1
        text = text.replace(old, new)
    # A port of its own: tests run at the same time, and the script's rank 0 listens at it.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        text = text.replace("12355", str(probe.getsockname()[1]))
    path = folder / "train.py"
    path.write_text(text)
    return path


@pytest.mark.xla
@pytest.mark.long
def test_a_record_of_the_cpu_holds_the_rewrite(tmp_path: Path) -> None:
    train, record = script(tmp_path), tmp_path / "cpu.rec"
    done = migrate("prove", train, "--record", record, "--steps", 2, "--timeout", LIMIT, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["replicas"], told["steps"]) == (2, 4)
    assert told["devices"] == "2 × a rank of the CPU"
    assert told["noise"]
    # The original is not run again: it may be a machine without what it needs.
    done = migrate("prove", train, "--against", record, "--timeout", LIMIT, "--json")
    assert done.exit_code == 0, done.output
    proof = json.loads(done.stdout)
    assert proof["verdict"] == "match"
    assert proof["message"].startswith("against the record of 2 × a rank of the CPU: ")
    assert "2 steps on each of 2 ranks" in proof["message"]


@pytest.mark.xla
@pytest.mark.long
def test_a_fault_of_the_rewrite_is_found_against_a_record(tmp_path: Path) -> None:
    train, record = script(tmp_path), tmp_path / "cpu.rec"
    done = migrate("prove", train, "--record", record, "--steps", 2, "--timeout", LIMIT)
    assert done.exit_code == 0, done.output
    faulty = tmp_path / "train_xla.py"
    assert migrate("rewrite", train, "--output", faulty).exit_code in (0, 1)
    text = faulty.read_text()
    assert "lr=0.05" in text
    faulty.write_text(text.replace("lr=0.05", "lr=0.1"))
    proof = prove_against(record, train, faulty, asked={}, timeout=LIMIT)
    assert proof.verdict is ProofVerdict.DIFFERS
    assert proof.difference is not None
    assert proof.difference.kind == "learning rate"


def test_a_script_without_steps_is_not_recorded(tmp_path: Path) -> None:
    train, record = tmp_path / "train.py", tmp_path / "cpu.rec"
    train.write_text("import torch\nprint('nothing')\n")
    done = migrate("prove", train, "--record", record, "--timeout", LIMIT)
    assert done.exit_code == 2
    assert "made no optimizer step" in done.output
    assert not record.exists()


@pytest.mark.skipif(torch.cuda.device_count() < 1, reason="needs a GPU")
def test_a_record_of_a_gpu_holds_the_rewrite(tmp_path: Path) -> None:
    train, record = script(tmp_path), tmp_path / "gpu.rec"
    done = migrate(
        "prove",
        train,
        "--record",
        record,
        "--replicas",
        1,
        "--steps",
        3,
        "--timeout",
        LIMIT,
        "--json",
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert torch.cuda.get_device_name(0) in told["devices"]
    assert told["noise"]
    if find_spec("torch_xla") is None:  # the machine of the GPU needs none to record
        return
    done = migrate("prove", train, "--against", record, "--timeout", LIMIT, "--json")
    assert done.exit_code == 0, done.output
    proof = json.loads(done.stdout)
    assert proof["verdict"] == "match"
    assert torch.cuda.get_device_name(0) in proof["message"]


@pytest.mark.skipif(torch.cuda.device_count() < 1, reason="needs a GPU")
def test_more_ranks_than_gpus_are_not_recorded(tmp_path: Path) -> None:
    ranks = torch.cuda.device_count() + 1
    done = migrate("prove", script(tmp_path), "--record", tmp_path / "a", "--replicas", ranks)
    assert done.exit_code == 2
    assert f"--ranks {ranks}, and " in done.output


@pytest.mark.parametrize(
    "options",
    [
        ("--record", "a", "--against", "b"),
        ("--record", "a", "--from-checkpoint", "b"),
        ("--against", "a", "--from-checkpoint", "b"),
        ("--record", "a", "--html", "b"),
        ("--record", "a", "--rewritten", "b"),
    ],
)
def test_options_that_do_not_go_together_are_one_line(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    done = migrate("prove", script(tmp_path), *options)
    assert done.exit_code == 2
    assert options[0] in done.output
