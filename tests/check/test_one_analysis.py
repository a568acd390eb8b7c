"""`migrate check` analyzes a project once for its hazards and for its rewrite."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.model.calls.analysis import Analysis
from migrate.model.project.project import Project
from migrate.rewrite.check_findings import check_and_mend

TRAIN = """
import torch
from utils import compute


def train(model, loader, optimizer):
    model.cuda()
    for x, y in loader:
        loss = compute(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
"""
UTILS = """
import torch


def compute(output, target):
    return torch.nn.functional.cross_entropy(output, target)
"""


@pytest.mark.parametrize("names", [("train.py",), ()], ids=["script", "folder"])
def test_no_project_is_analyzed_twice(
    names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "train.py").write_text(TRAIN)
    if not names:
        (tmp_path / "utils.py").write_text(UTILS)
    projects: list[Project] = []
    analyze = Analysis.__init__

    def noted(self: Analysis, project: Project, before: Analysis | None = None) -> None:
        projects.append(project)
        analyze(self, project, before)

    monkeypatch.setattr(Analysis, "__init__", noted)
    checked = check_and_mend([tmp_path.joinpath(*names)], Config())
    assert checked.findings
    twice = [p for i, p in enumerate(projects) if any(p.is_same(q) for q in projects[:i])]
    assert projects
    assert not twice
