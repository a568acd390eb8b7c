"""What `migrate prove` does with its options, and how it shows a proof of resuming."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from migrate.cli import commands
from migrate.cli.rewritten import rewritten_with_findings
from migrate.prove import failure, proof, resume
from migrate.prove.compare.verdict import ProofVerdict
from migrate.prove.errors import NotWrittenError
from migrate.prove.proof import Proof
from migrate.prove.resume import FORWARD, REVERSE, Direction, ResumeProof
from migrate.prove.settings import Settings
from migrate.report.html.prove import write_prove_page


def run(*args: object) -> Result:
    return CliRunner().invoke(commands, [str(arg) for arg in args])


def found(verdict: ProofVerdict, message: str, *, partial: bool = False) -> Proof:
    return Proof(verdict, message, 2, (), (), None, ("a note",), 1.0, 2.0, partial=partial)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("import torch\n")
    return path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command asks for; nothing runs."""
    kept: dict[str, Any] = {}

    def prove(script: Path, rewritten: Path, args: Any, **options: Any) -> Proof:
        kept.update(options)
        return found(ProofVerdict.MATCH, "they agree")

    def resuming(
        script: Path, rewritten: Path, args: Any, checkpoint: Path, **options: Any
    ) -> ResumeProof:
        kept.update(options, checkpoint=checkpoint)
        reverse = found(
            ProofVerdict.CANNOT_RESUME, "the original cannot start from last.pt: KeyError: 'a'"
        )
        return ResumeProof(
            checkpoint,
            (
                Direction(FORWARD, found(ProofVerdict.MATCH, "they agree")),
                Direction(REVERSE, reverse),
            ),
        )

    monkeypatch.setattr(proof, "prove", prove)
    monkeypatch.setattr(resume, "prove_resuming", resuming)
    return kept


def test_deterministic_is_the_default(script: Path, asked: dict[str, Any]) -> None:
    assert run("prove", script).exit_code == 0
    assert asked["settings"] == Settings(deterministic=True, amp="bf16", steps=None)


def test_options_become_settings(script: Path, asked: dict[str, Any]) -> None:
    options = ("--no-deterministic", "--amp", "keep", "--steps", 3, "--start", "spawn")
    done = run("prove", script, *options, "--timeout", 5, "--", "--epochs", 1)
    assert done.exit_code == 0
    assert asked["settings"] == Settings(False, "keep", 3, "spawn", 5.0)


def test_ci_may_fail_on_a_proof_of_the_first_steps_only(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = "match in 3 of 8 steps; from step 4 on nothing is judged"
    proven = found(ProofVerdict.MATCH, message, partial=True)
    monkeypatch.setattr(proof, "prove", lambda *args, **options: proven)
    done = run("prove", script)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1] == message
    assert run("prove", script, "--fail-on", "partial").exit_code == 1
    assert json.loads(run("prove", script, "--json").stdout)["partial"] is True


def test_information_is_no_work_by_hand(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    loop = "total = 0.0\nfor x in loader:\n    loss = model(x.cuda()).mean()\n    loss.backward()\n"
    script.write_text(f"{loop}    optimizer.step()\n    total += loss.item()\n")
    with contextlib.ExitStack() as stack:
        assert rewritten_with_findings(script, stack)[1] == 0
    script.write_text(script.read_text() + "import apex.parallel\n")
    with contextlib.ExitStack() as stack:
        assert rewritten_with_findings(script, stack)[1] == 1


@pytest.mark.parametrize("imports", [False, True])
def test_the_command_for_more_findings_reads_what_the_proof_read(
    imports: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    (tmp_path / "net.py").write_text("width = 4\n")
    lines = "".join(
        f"import {name}\n" for name in ("apex", "apex.parallel", "apex.amp", "deepspeed")
    )
    script.write_text(f"{lines}{'import net' * imports}\n" + "x = model.cuda()\n" * 2)
    with contextlib.ExitStack() as stack:
        rewritten_with_findings(script, stack)
    (rest,) = [line for line in capsys.readouterr().err.splitlines() if "more finding" in line]
    assert ("migrate check " in rest) is imports


@pytest.mark.parametrize(
    "options", [("--steps", 0), ("--amp", "fp8"), ("--steps", "many"), ("--resume-args", "-r")]
)
def test_bad_options(options: tuple[object, ...], script: Path) -> None:
    done = run("prove", script, *options)
    assert done.exit_code == 2
    assert options[0] in done.stderr


def test_both_directions_are_shown(script: Path, asked: dict[str, Any]) -> None:
    more = ("--resume-args", "--resume 'last one.pt'")
    done = run("prove", script, "--from-checkpoint", "last.pt", *more, "--steps", 2)
    assert done.exit_code == 1
    assert asked["checkpoint"] == Path("last.pt")
    assert asked["settings"].steps == 2
    assert asked["resume_args"] == ["--resume", "last one.pt"]
    lines = done.stdout.splitlines()
    assert lines[0] == f"{FORWARD} (last.pt)"
    assert f"{REVERSE} (last.pt)" in lines
    assert lines[-1] == "cannot resume: the original cannot start from last.pt: KeyError: 'a'"


def test_both_directions_as_json(script: Path, asked: dict[str, Any]) -> None:
    plain = json.loads(run("prove", script, "--from-checkpoint", "last.pt", "--json").stdout)
    assert plain["equal"] is False
    assert plain["checkpoint"] == "last.pt"
    assert [(one["name"], one["verdict"]) for one in plain["directions"]] == [
        (FORWARD, "match"),
        (REVERSE, "cannot resume"),
    ]
    assert plain["directions"][0]["settings"]["amp"] == "bf16"


def test_what_could_not_be_compared_is_one_line(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: Any, **options: Any) -> None:
        raise NotWrittenError("the original ended without writing last.pt", "give another path")

    monkeypatch.setattr(resume, "prove_resuming", never)
    done = run("prove", script, "--from-checkpoint", "last.pt", "--json")
    assert done.exit_code == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("migrate:")]
    assert line == "migrate: the original ended without writing last.pt; give another path"


def test_both_directions_are_on_the_page(tmp_path: Path) -> None:
    forward = found(ProofVerdict.MATCH, "they agree")
    reverse = found(ProofVerdict.VACUOUS, "the <file> is not read")
    directions = (Direction(FORWARD, forward), Direction(REVERSE, reverse))
    path = tmp_path / "page.html"
    write_prove_page(ResumeProof(Path("last.pt"), directions), Path("train.py"), path)
    text = path.read_text()
    # Jinja writes the apostrophe as an entity.
    forward, reverse = (
        text.index(f"checkpoint in the {side}</h2>") for side in ("rewrite", "original")
    )
    assert forward < text.index("They agree.") < reverse
    assert text.index("The &lt;file&gt; is not read.") < forward  # in the banner
    assert text.index("The &lt;file&gt; is not read.", forward) > reverse


def test_the_reason_of_a_rank_that_failed() -> None:
    said = (
        "[rank1]: Traceback\n[rank1]: KeyError: 'scaler'\nshims: rank 1 of 2 failed (exit code 1)\n"
    )
    assert failure.last_error(said) == "KeyError: 'scaler'"
    said = (
        "LLVM ERROR: Program used external function '__truncsfhf2'\nFatal Python error: Aborted\n"
    )
    assert failure.last_error(said) == said.splitlines()[0]
    assert failure.last_error("nothing was said") is None
    assert failure._ending(-6) == "its process was ended by SIGABRT"
