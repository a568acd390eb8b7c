"""Shapes that depend on values, in what a training loop calls at every step beside the step itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.hazard import Severity
from migrate.check.project import check_paths
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style

LOOP = """\
import torch
from torch import nn
{imports}

def main(rank=0):
    device = torch.device("cuda")
    model = nn.Linear(8, 8).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    {setup}
    for step in range(20):
        x, y = torch.randn(4, 8).to(device), torch.rand(4, 8).to(device)
        pred = model(x)
        loss = (pred - y).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        {call}


main()
"""
FUNCTION = (
    "def error(pred, gt):\n    mask = gt > 0.5\n    return (pred[mask] - gt[mask]).abs().mean()\n"
)
METHOD = """\
{imports}
class Metric{base}:
    def error(self, sample, output):
        with torch.no_grad():
            pred = output["pred"].detach()
            gt = sample["gt"].detach()
            mask = gt > 0.5
            return (pred[mask] - gt[mask]).abs().mean()
"""
BASE = "class Base:\n    def error(self, sample, output):\n        pass\n"
CALL_METHOD = 'log = metric.error({"gt": y}, {"pred": pred})'


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def _loop(imports: str, call: str, setup: str = "pass") -> str:
    return LOOP.format(imports=imports, call=call, setup=setup)


@pytest.mark.parametrize("style", ["native", "portable"])
def test_a_rewrite_reports_metrics_of_other_files(tmp_path: Path, style: Style) -> None:
    _write(
        tmp_path,
        {
            "plain.py": FUNCTION,
            "metrics/__init__.py": BASE,
            "metrics/of.py": METHOD.format(
                imports="import torch\nfrom . import Base\n\n", base="(Base)"
            ),
            "logs.py": "from plain import error\n\n\ndef log(pred, gt):\n    print(error(pred, gt))\n",
            "a.py": _loop("from logs import log\n", "if rank == 0:\n            log(pred, y)"),
            "b.py": _loop("from metrics.of import Metric\n", CALL_METHOD, "metric = Metric()"),
        },
    )
    done = rewrite_folder(tmp_path, options=RewriteOptions(style=style), processes=1)
    reported = [
        (file.name.as_posix(), note.line)
        for file in done.files
        for note in file.findings
        if note.rule == "XLA103" and note.severity is not Severity.INFO
    ]
    assert reported == [
        ("metrics/of.py", 11),
        ("metrics/of.py", 11),
        ("plain.py", 3),
        ("plain.py", 3),
    ]


@pytest.mark.parametrize(
    ("call", "severities"),
    [
        ("error(pred, y)", {Severity.WARNING}),
        ("error(pred.cpu(), y.cpu())", set()),  # the host computes
        ("if step % 100 == 0:\n            error(pred, y)", set()),  # seldom
    ],
)
def test_only_what_every_step_runs_on_the_device(
    tmp_path: Path, call: str, severities: set[Severity]
) -> None:
    _write(tmp_path, {"plain.py": FUNCTION, "a.py": _loop("from plain import error\n", call)})
    findings = check_paths([tmp_path], Config()).findings
    assert {one.severity for one in findings if one.code == "XLA103"} == severities


def test_metrics_of_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(_loop("\n" + FUNCTION, "log = [error(pred, y)]"))
    hits = check_paths([path], Config(select=("XLA103",))).findings
    assert [one.severity for one in hits] == [Severity.WARNING] * 2


LARGEST = """\
import torch


class Largest:
    def __init__(self):
        self.top = torch.zeros(1).cuda()

    def update(self, x):
        self.top = max(self.top, torch.max(x.cuda()))
"""
STEPS = """\
import torch

from largest import Largest


def train(model, loader, optimizer, args, mode):
    model.cuda()
    largest = Largest()
    for number, x in enumerate(loader):
        x = x.cuda()
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        if TEST:
            largest.update(x)
"""


@pytest.mark.parametrize(
    ("test", "is_reported"),
    [
        ("args.normalize", True),
        ('not args.off and mode in ("a", "b")', True),
        ("number % 100 == 0", False),
        ("number == args.last", False),
    ],
)
def test_what_an_option_switches_on_runs_at_every_step(
    tmp_path: Path, test: str, is_reported: bool
) -> None:
    (tmp_path / "largest.py").write_text(LARGEST)
    (tmp_path / "train.py").write_text(STEPS.replace("TEST", test))
    reports = check_paths([tmp_path], Config(select=("XLA110",))).findings
    assert bool(reports) is is_reported
