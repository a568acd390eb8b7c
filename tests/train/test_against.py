"""`migrate prove SCRIPT --against FOLDER`: what is compared, how it is shown, and what is refused."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from migrate.cli import commands
from migrate.report.text.train import proof_as_json, proof_summary
from migrate.train.proof.interface import names_compared
from migrate.train.results import STAGES, ProgramProof, TrainComparison, stages
from migrate.train.slice.text import ScriptText
from tests.train.scripts import LATE


def proof(*comparisons: TrainComparison, error: str = "") -> ProgramProof:
    """A proof of five updates."""
    return ProgramProof(Path("p"), Path("t.py"), 5, comparisons, error)


def test_each_stage_has_its_own_verdict() -> None:
    found = proof(
        TrainComparison("parameters", True),
        TrainComparison("gradients", True, 1e-7, 1e-5),
        TrainComparison("optimizer", False, 0.2, 1e-5, cause="lost clipping"),
        TrainComparison("losses", True, 1e-7, 1e-5),
    )
    assert stages(found.comparisons) == {
        "interface": "match",
        "numeric": "differs in optimizer",
        "behavioural": "match",
    }
    console = Console(width=120, record=True, file=StringIO())
    for part in proof_summary(found):
        console.print(part)
    text = console.export_text()
    assert "cause (optimizer): lost clipping" in text
    rows = [line.split()[:2] for line in text.splitlines()[1:5]]
    assert [stage for stage, _ in rows] == ["interface", "numeric", "numeric", "behavioural"]
    assert {line for line in text.splitlines() if line.startswith("numeric: one update")}
    assert text.rstrip().splitlines()[-1] == "differs: t.py and p, 5 updates"
    plain = proof_as_json(found)
    assert plain["verdict"] == "differs"
    assert plain["comparisons"][2]["cause"] == "lost clipping"


def test_an_intended_difference_is_reported_and_no_fault() -> None:
    found = proof(TrainComparison("global mean", True, 1e-7, 1e-5, intended=True))
    assert proof_as_json(found)["stages"] == {"numeric": "match, a difference is intended"}
    assert proof_as_json(found)["verdict"] == "match"


def test_a_name_of_two_meanings_is_said_beside_the_verdict() -> None:
    found = proof(TrainComparison("names", True, what="rollout(state, seed)"))
    assert proof_as_json(found)["stages"] == {"interface": "match, names of two meanings"}
    console = Console(width=120, record=True, file=StringIO())
    for part in proof_summary(found):
        console.print(part)
    last = console.export_text().rstrip().splitlines()[-1]
    assert last == "match except names: t.py and p, 5 updates"


@pytest.mark.parametrize(
    ("script", "heads"),
    [
        ("def rollout(models): ...", "rollout(state, seed)"),
        ("def rollout(state, seed): ...", ""),
        ("class step: ...\ndef load(path): ...", "load(weights), step(state, micro)"),
        ("class Trainer:\n    def step(self): ...\nload = 1", ""),
        ("class Goal:\n    def __init__(self, policy, beta=1): ...", "Goal(state)"),
        ("class Goal:\n    def __init__(self, state): ...", ""),
        ("class Held:\n    def __init__(self, policy): ...", ""),
    ],
)
def test_names_of_two_meanings(script: str, heads: str) -> None:
    interface = "def load(weights): ...\ndef step(state, micro): ...\ndef rollout(state, seed): ..."
    interface += "\nclass Goal:\n    def __init__(self, state): ..."
    interface += "\nclass Held:\n    def __init__(self, policy): ..."
    found = names_compared(ScriptText("t.py", script), interface)
    assert [heads in comparison.what for comparison in found] == [True] * bool(heads)


def test_a_program_that_does_not_run_is_not_the_same() -> None:
    assert proof_as_json(proof(error="it fails"))["verdict"] == "does not run"


def test_each_comparison_has_one_stage() -> None:
    names = [name for own in STAGES.values() for name in own]
    assert len(names) == len(set(names))


def test_a_folder_that_is_no_program_is_one_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LATE)
    result = CliRunner().invoke(commands, ["prove", str(script), "--against", str(tmp_path)])
    assert result.exit_code == 2
    assert "is no program of migrate train: loss.py is missing" in result.output
    (tmp_path / "jax_program").mkdir()
    (tmp_path / "jax_program" / "loss.py").touch()
    wrong = str(tmp_path / "jaxprogram")
    result = CliRunner().invoke(commands, ["prove", str(script), "--against", wrong])
    assert result.exit_code == 2
    assert f"no such file or folder; did you mean {tmp_path / 'jax_program'}?" in result.output


def test_options_of_rewrites_do_not_go_with_a_program(tmp_path: Path) -> None:
    command = ["prove", "train.py", "--against", str(tmp_path), "--replicas", "2"]
    result = CliRunner().invoke(commands, command)
    assert result.exit_code == 2
    assert "--replicas is for rewrites" in result.output


@pytest.mark.long
def test_an_edited_program_differs_and_the_cause_is_named(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LATE.replace("CHANGE", "pass").replace("lr=0.1", "lr=0.1, momentum=0.9"))
    program = tmp_path / "jax_program"
    run = CliRunner()
    assert run.invoke(commands, ["train", str(script), "-o", str(program)]).exit_code == 0
    command = ["prove", str(script), "--against", str(program), "--json"]
    right = run.invoke(commands, command)
    assert right.exit_code == 0, right.output
    assert set(json.loads(right.stdout)["stages"].values()) == {"match"}
    source = program / "optimizer.py"
    source.write_text(source.read_text().replace("momentum=0.9", "momentum=0.5"))
    wrong = run.invoke(commands, command)
    assert wrong.exit_code == 1
    named = {c["name"]: c["cause"] for c in json.loads(wrong.stdout)["comparisons"]}
    assert named["optimizer"].startswith("other momentum: 0.5")
    assert named["gradients"] == ""
