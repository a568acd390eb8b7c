"""Searches for garbage are rare while scripts are worked at, and what they were afterwards."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from migrate.check.check import check_facts
from migrate.check.config import Config
from migrate.model.calls.analysis import Analysis
from migrate.model.facts import calls_of_file
from migrate.model.project.project import Project
from migrate.reading.facts import Facts
from migrate.reading.project.reach import entered_by_steps
from migrate.reading.project.workers import MEMORY, OF_CALLS, Workers, keep, kept, let_go
from migrate.reading.script import Script
from migrate.rewrite import file
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.left import after
from migrate.syntax.interpreter import SELDOM, seldom_collected
from migrate.syntax.source import Source, UnreadableScriptError, parse


def test_only_in_the_block() -> None:
    before = gc.get_threshold()
    assert before != SELDOM

    @seldom_collected()
    def failing() -> None:
        assert gc.get_threshold() == SELDOM
        raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert gc.get_threshold() == before


def test_while_a_file_is_rewritten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = gc.get_threshold()
    seen = []
    monkeypatch.setattr(file, "rewrite", lambda *_, **__: seen.append(gc.get_threshold()))
    file.rewrite_file(tmp_path / "script.py")
    assert seen == [SELDOM]
    monkeypatch.undo()
    with pytest.raises(UnreadableScriptError):
        file.rewrite_file(tmp_path / "missing.py")
    assert gc.get_threshold() == before


ENDING = """
import os, sys
from migrate.cli import main

class Kept:
    def __del__(self):
        os.write(1, b"searched\\n")

kept = Kept()
kept.itself = kept
del kept
sys.argv = {words}
main()
"""


@pytest.mark.parametrize(
    ("command", "is_searched"), [("check", False), ("rewrite", False), ("doctor", True)]
)
def test_a_command_on_code_ends_without_a_search(command: str, is_searched: bool) -> None:
    program = ENDING.format(words=["migrate", command, "--help"])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ("searched" in done.stdout) is is_searched


TRAINING = b"""
import torch
from model import loss_of

net = torch.nn.Linear(2, 1).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in loader:
    loss = loss_of(net, x.cuda())
    loss.backward()
    optimizer.step()
    print(loss.item())
"""
LOSS = b"def loss_of(net, x):\n    return net(x).sum()\n"


def test_a_script_that_is_let_go_of_is_gone_without_a_search(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    gc.disable()
    try:
        with Workers(1, 1):
            script = Script(parse(TRAINING, path))
            check_facts(Facts(script), Config())
            source = weakref.ref(script.source)
            keep(script)
            let_go(script)
            assert kept(path, TRAINING) is script
        let_go(script)
        assert source() is None
    finally:
        gc.enable()


def test_what_a_step_of_another_file_runs_is_worth_keeping(tmp_path: Path) -> None:
    files = {"train.py": TRAINING, "model.py": LOSS, "other.py": b"def made():\n    return 1\n"}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    project = Project.of_files(tmp_path, [tmp_path / name for name in files])
    assert entered_by_steps(Analysis(project)) == {(tmp_path / "model.py").resolve()}


def test_of_a_large_project_no_tree_is_kept(tmp_path: Path) -> None:
    script = Script(parse(TRAINING, tmp_path / "train.py"))
    for source, stays in ((MEMORY // OF_CALLS, None), (MEMORY // OF_CALLS // 2, script)):
        with Workers(1, 1, source):
            keep(script)
            assert kept(tmp_path / "train.py", TRAINING) is stays


def test_what_was_let_go_of_is_found_again(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(TRAINING)
    (tmp_path / "model.py").write_bytes(LOSS)
    files = [tmp_path / "train.py", tmp_path / "model.py"]
    analysis = Analysis(Project.of_files(tmp_path, files))
    before = [calls_of_file(analysis, path) for path in files]
    analysis.evaluator.let_go()
    assert [calls_of_file(analysis, path) for path in files] == before
    assert before[0].step_loops


def test_pictures_of_a_notebook_do_not_make_a_project_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = {"image/png": "A" * (MEMORY // OF_CALLS)}
    shown = {"output_type": "display_data", "data": picture, "metadata": {}}
    cell = {"cell_type": "code", "source": "import torch\n", "outputs": [shown], "metadata": {}}
    notebook = {
        "cells": [cell | {"execution_count": 1}],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (tmp_path / "shown.ipynb").write_text(json.dumps(notebook))
    (tmp_path / "train.py").write_bytes(TRAINING)
    model = tmp_path / "model.py"
    model.write_bytes(b"import torch\n" + LOSS)  # a rule is asked of it, and its tree kept
    parsed: list[Path] = []

    def counted(data: bytes, path: Path) -> Source:
        parsed.append(path)
        return parse(data, path)

    monkeypatch.setattr(after, "parse", counted)
    rewrite_folder(tmp_path, processes=1)
    assert model.resolve() not in parsed
