"""Findings of `migrate rewrite` name the lines to edit, and its last lines the packages that are needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from migrate.cli import commands
from migrate.report.text.findings import Findings, written_file
from migrate.report.text.rewrite import findings_of_files, needs
from migrate.rewrite.results import Note

SCRIPT = """\
import torch

model = torch.nn.Linear(2, 2).cuda()
print(torch.cuda.device_count())
"""
NOTES = [("train.py", Note(line, 1, "unhandled", f"look at {line}")) for line in range(1, 6)]


@pytest.mark.parametrize("whole_folder", [False, True])
def test_a_finding_names_its_line_in_the_written_file(tmp_path: Path, whole_folder: bool) -> None:
    (tmp_path / "mine").mkdir()
    path = tmp_path / "mine" / "train.py"
    path.write_text(SCRIPT)
    to = tmp_path / "xla" / "train.py"
    pair = (path.parent, to.parent) if whole_folder else (path, tmp_path / "train_xla.py")
    done = CliRunner().invoke(commands, ["rewrite", str(pair[0]), "-o", str(pair[1])])
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(f"{path}:4:7: ")]
    written = to if whole_folder else pair[1]
    number = written.read_text().splitlines().index("print(torch.cuda.device_count())") + 1
    assert number != 4
    assert line.endswith(f" [{written}:{number}]")


def test_an_original_that_was_replaced_names_only_lines_that_moved() -> None:
    same = written_file(Path("train.py"), b"a\nb\nc\n", b"a\nnew\nb\nc\n")
    assert same.lines == {1: 1, 2: 3, 3: 4}
    shown = [Findings(NOTES, {"train.py": same})._line_now(*entry) for entry in NOTES[:2]]
    assert shown == ["", " [train.py:3]"]


def test_only_the_first_findings_are_shown_before_a_run() -> None:
    _, findings, rest = findings_of_files(NOTES, most=3, rest="migrate rewrite train.py --check")
    assert isinstance(findings, Findings)
    assert [note.line for _, note in findings.notes] == [1, 2, 3]
    assert rest == "… and 2 more findings: migrate rewrite train.py --check"


@pytest.mark.parametrize(
    ("requirements", "missing"),
    [
        (None, "install tpu-migrate where it runs"),
        ("torch==2.9\n", "add tpu-migrate and torch_xla to "),
        ("torch-xla[tpu]==2.9\n", "add tpu-migrate to "),
        ("torch_xla\ntpu_migrate>=0.1\n", None),
    ],
)
def test_what_shims_needs_is_said(tmp_path: Path, requirements: Any, missing: str | None) -> None:
    if requirements is not None:
        (tmp_path / "requirements.txt").write_text(requirements)
    said = list(needs(b"import torch\nimport shims\n", tmp_path))
    assert bool(said) == (missing is not None)
    assert missing is None or said[0].startswith(f"the rewrite imports shims: {missing}")
    assert not list(needs(b"import torch_xla\n", tmp_path))
