"""`migrate assess` as a user meets it."""

from __future__ import annotations

import html
import io
import json
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

import migrate.report.schema
from migrate.cli import commands
from migrate.report.html.assess import write_assess_page
from migrate.report.text.assess import assess_as_json, assess_summary, batch_lines
from tests.assess import projects
from tests.assess import sample_assessments as assessments

SCHEMA = json.loads(Path(migrate.report.schema.__file__).with_name("assess.json").read_text())


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(commands, ["assess", *map(str, args)])


def said(result: Result) -> dict[str, object]:
    """What --json printed, held to its schema."""
    found = json.loads(result.stdout)
    jsonschema.Draft202012Validator(SCHEMA).validate(found)
    return found


@pytest.mark.parametrize("name", assessments.ALL)
def test_each_form_says_the_same(name: str, tmp_path: Path) -> None:
    found = assessments.ALL[name]()
    stream = io.StringIO()
    console = Console(file=stream, width=200, highlight=False)
    for one in assess_summary(found):
        console.print(one)
    text = " ".join(stream.getvalue().split())
    assert text.startswith(found.decision.sentence)
    write_assess_page(found, tmp_path / "page.html")
    page = html.unescape(re.sub("<[^>]*>", "", (tmp_path / "page.html").read_text()))
    plain = assess_as_json(found)
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(plain)))
    for one in (
        found.decision.sentence,
        *batch_lines(found),
        *plain["risks"],
        *plain["reasons"],
        *plain["assumed"],
    ):
        assert " ".join(one.split()) in text
        # On the page it is a sentence: with a capital, a full stop, and options as code.
        for part in one.rstrip(".").replace("`", "").split(": "):
            assert part[1:] in page


def test_one_of_a_thing_is_no_several() -> None:
    found = assessments.ALL["one of each"]()
    said = "\n".join(str(one) for one in assess_summary(found))
    assert "1 more finding in files" in said
    assert "setup and 1 place to look at included" in said
    things = "files|edits|findings|places|steps|replicas|things|runs|hours"
    wrong = rf"(?<![\d.,])1 (more |simulated )?({things})\b"
    assert re.search(wrong, said) is None
    assert "1 run are" not in said


def test_the_schema_is_one_and_forbids_what_it_does_not_name() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    found = json.loads(json.dumps(assess_as_json(assessments.ALL["move"]())))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(found | {"more": 1})


@pytest.mark.parametrize(
    ("project", "place"),
    [(projects.deepspeed, "train.py:3:1: DeepSpeed"), (projects.kernels, "op/fused.py:4:1: torch")],
)
def test_a_project_that_a_tpu_cannot_run_stays(
    project: Callable[[Path], Path], place: str, tmp_path: Path
) -> None:
    done = run(project(tmp_path), "--script", "train.py", "--json")
    assert done.exit_code == 1
    found = said(done)
    assert (found["decision"], found["sentence"]) == ("stay", "Stay on the GPU.")
    (reason,) = found["reasons"]
    assert reason.startswith(place)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("none", "--script", "train.py"), "none: no such folder"),
        (("P", "--script", "trian.py"), "trian.py: no such script in {P}; near: train.py"),
        (("P", "--script", "notes.txt"), "notes.txt: not a Python script"),
        (("P", "--script", __file__), f"{__file__}: lies outside of"),
        (
            ("P", "--script", "train.py", "--gpu", "h101"),
            "--gpu h101: no price is known; near",
        ),
        (("P", "--script", "train.py", "--tpu", "v5f-8"), "v5f-8: no such TPU slice"),
        (("P", "--script", "train.py", "--steps", "-3"), "--steps -3: not a valid number"),
        (("P", "--script", "train.py", "--share-of-bound", "2"), "--share-of-bound 2: not a share"),
        (
            ("P", "--script", "train.py", "--batch-option", "-b", "--", "-b", "many"),
            "-b many: not a batch",
        ),
        (("P", "--script", "train.py", "--prices", "none"), "none: cannot be read"),
        (
            ("P", "--script", "train.py", "--hours", "P/notes.txt"),
            "notes.txt:1: the file is not a table",
        ),
        (
            ("P", "--script", "train.py", "--html", "none/page.html"),
            "none/page.html: not a file in",
        ),
    ],
)
def test_bad_input_is_one_line(args: tuple[str, ...], says: str, tmp_path: Path) -> None:
    projects.plain(tmp_path)
    (tmp_path / "notes.txt").write_text("text\n")
    done = run(*(one.replace("P", str(tmp_path), 1) if one[0] == "P" else one for one in args))
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert says.replace("{P}", str(tmp_path)) in line


@pytest.mark.long
@pytest.mark.xla
@pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is not installed")
def test_a_plain_project_runs_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    project = projects.plain(tmp_path / "project")
    monkeypatch.chdir(project)
    money = ("--gpu", "h100", "--gpu-step-seconds", "0.2", "--steps", "90000000")
    porting = ("--engineer-hour", "200", "--runs", "5", "--html", tmp_path / "page.html")
    done = run(
        *(".", "--script", "train.py", "--tpu", "v5e-8", *money, *porting, "--json"),
        *("--", "--steps", "14"),
    )
    found = said(done)
    assert (done.exit_code, found["decision"]) == (0, "move"), found
    assert found["run"]["steps"] >= 12
    assert not found["run"]["dynamic"]
    (there,) = found["fit"]["slices"]
    assert (there["state"], there["devices"]) == ("fits", 8)
    assert found["money"]["slices"][0]["dollars_assumed"] < found["money"]["today"]["dollars"]
    assert "Run it on v5e-8" in (tmp_path / "page.html").read_text()


@pytest.mark.long
@pytest.mark.xla
@pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is not installed")
def test_shapes_that_change_with_each_step_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    project = projects.plain(tmp_path / "project", " + step")
    monkeypatch.chdir(project)
    done = run(".", "--script", "train.py", "--tpu", "v5e-8", "--json", "--", "--steps", "14")
    found = said(done)
    assert (done.exit_code, found["decision"], found["run"]["dynamic"]) == (1, "stay", True)
    assert "compiled anew" in found["reasons"][0]
    assert "train.py:" in found["run"]["changes"][0]


@pytest.mark.long
@pytest.mark.xla
def test_a_script_that_makes_no_step_is_undetermined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    projects.write(tmp_path, {"train.py": "import torch\n\nprint(torch.ones(2).cuda())\n"})
    done = run(".", "--script", "train.py", "--json")
    found = said(done)
    assert (done.exit_code, found["decision"]) == (1, "undetermined")
    assert "without a training step" in found["unsaid"][0]
