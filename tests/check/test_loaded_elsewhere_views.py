"""Views in an optimizer's groups, whose state another file loads."""

from __future__ import annotations

from pathlib import Path

from migrate.check.config import Config
from migrate.check.hazard import Severity
from migrate.check.project import check_paths

OPTIMIZER = """
import torch


class Sharing(torch.optim.Optimizer):
    def __init__(self, params):
        params = list(params)
        buffer = torch.empty(2, 4, device="xla")
        group = dict(params=params, buffer=buffer, views=[buffer[i] for i in range(2)])
        super().__init__([group], {})
"""
RESUME = """
import torch


def resume(optimizer, path):
    optimizer.load_state_dict(torch.load(path, map_location="cpu"))
"""


def test_a_load_in_another_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "sharing.py").write_text(OPTIMIZER)
    assert severities(tmp_path) == {Severity.INFO}
    (tmp_path / "resume.py").write_text(RESUME)
    assert severities(tmp_path) == {Severity.ERROR}


def severities(folder: Path) -> set[Severity]:
    """Return how bad the findings for the views are."""
    findings = check_paths([folder], Config(select=("XLA830",))).findings
    return {f.severity for f in findings if "views" in f.message}
