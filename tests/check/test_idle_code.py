"""Findings in code that never runs, because of a way out or a constant above it."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.check.finding import Finding
from migrate.check.hazard import Severity
from migrate.check.project import check_paths
from migrate.syntax.source import parse

SCRIPT = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

DEBUG = False
SETTINGS


def show(x):
    SHOW


def train(net, loader, optimizer, other, debug=False):
    rank = dist.get_rank()
    model = DDP(net.cuda())
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        acc = (x.argmax(1) == y).float().mean()
        show(acc)
        ABOVE
        if rank == 0:
            print(acc.item())
            model(x)


train(torch.nn.Linear(2, 2), [], None, input())
"""
NEVER = [
    "continue",
    "if True: continue",
    "if 1 == 1: continue",
    "if other: continue\n        else: break",
    "if False: pass\n        else: continue",
]
AS_SET = ["if not DEBUG: continue", "if not debug: continue", "if debug or not DEBUG: continue"]
MAY = [
    "pass",
    "if other: continue",
    "if False: continue",
    "if DEBUG: continue",
    "if other: continue\n        elif rank: print(rank)",
    "for _ in range(rank): continue",
    "def inner(): return",
]


def found(above: str, show: str = "pass", settings: str = "") -> tuple[Finding, ...]:
    text = SCRIPT.replace("ABOVE", above).replace("SHOW", show).replace("SETTINGS", settings)
    return check_source(parse(text.encode(), Path("train.py")), Config(select=("XLA2", "XLA3")))


def severities(findings: tuple[Finding, ...]) -> dict[str, Severity]:
    return {one.code: one.severity for one in findings if one.code.startswith("XLA3")}


@pytest.mark.parametrize("above", NEVER)
def test_what_never_runs_has_no_finding(above: str) -> None:
    assert severities(found(above)) == {}


@pytest.mark.parametrize("above", AS_SET)
def test_what_a_constant_keeps_from_running_is_information(above: str) -> None:
    findings = found(above)
    assert severities(findings) == {"XLA304": Severity.INFO, "XLA305": Severity.INFO}
    assert all("never runs as long as `" in one.message for one in findings)


@pytest.mark.parametrize("above", MAY)
def test_what_may_run_is_reported(above: str) -> None:
    assert severities(found(above)) == {"XLA304": Severity.WARNING, "XLA305": Severity.ERROR}


@pytest.mark.parametrize(
    "settings", ["exec(open('settings.py').read())", "globals().update(DEBUG=True)", "DEBUG = True"]
)
def test_a_constant_that_something_else_sets_is_none(settings: str) -> None:
    assert severities(found("if not DEBUG: continue", settings=settings))["XLA305"] == "error"


@pytest.mark.parametrize(
    ("show", "reads"),
    [
        ("print(x.item())", True),
        ("if x is None: return\n    print(x.item())", True),
        ("if DEBUG: return\n    print(x.item())", True),
        ("return\n    print(x.item())", False),
        ("if not DEBUG: return\n    print(x.item())", False),
        ("if DEBUG: print(x.item())", False),
        ("if False: print(x.item())", False),
    ],
)
def test_a_function_reads_only_what_runs(show: str, reads: bool) -> None:
    assert bool([one for one in found("break", show) if one.code == "XLA208"]) is reads
    of_first = found("if rank == 0: show(2 * acc)\n        break", show.replace("x.i", "(x + 1).i"))
    assert ("XLA305" in severities(of_first)) is reads


def test_what_another_file_sets_or_passes_is_no_constant(tmp_path: Path) -> None:
    text = SCRIPT.replace("SETTINGS", "").replace("SHOW", "pass")
    for name, above in (("one", "if not DEBUG: continue"), ("two", "if not debug: continue")):
        (tmp_path / f"{name}.py").write_text(text.replace("ABOVE", above))
    setting = "import one\nimport two\n\none.DEBUG = True\ntwo.train(1, 2, 3, 4, debug=True)\n"
    (tmp_path / "main.py").write_text(setting)
    findings = check_paths([tmp_path], Config(select=("XLA305",))).findings
    assert [one.severity for one in findings] == [Severity.ERROR] * 2


NORM = """
import math

import torch
from torch import inf


def norm_of(parameters, norm_type=2.0):
    norms = [p.grad.abs().max() for p in parameters]
    norm_type = float(norm_type)
    if norm_type == INFINITE:
        return max(norm for norm in norms)
    return torch.norm(torch.stack(norms), norm_type)


class Scaler:
    def __call__(self, loss, optimizer, parameters):
        loss.backward()
        norm = norm_of(parameters)
        optimizer.step()
        return norm
"""
NORM_OF_ALL = """
import scaling


def train(net, loader, optimizer, CHOSEN):
    net.cuda()
    scaler = scaling.Scaler()
    for x in loader:
        scaler(net(x.cuda()).sum(), optimizer, net.parameters())
        USED
"""


@pytest.mark.parametrize("infinite", ["torch.inf", "math.inf", "inf", 'float("inf")'])
@pytest.mark.parametrize(
    ("used", "severity"),
    [
        ("pass", Severity.INFO),
        ("scaling.norm_of(net.parameters(), CHOSEN)", Severity.WARNING),
        ("scaling.__dict__['norm_of'](net.parameters(), CHOSEN)", Severity.WARNING),
    ],
)
def test_a_branch_for_what_nobody_passes(
    tmp_path: Path, infinite: str, used: str, severity: Severity
) -> None:
    """The gradient norm of timm and MAE: `norm_type == inf`, and all take the default."""
    (tmp_path / "scaling.py").write_text(NORM.replace("INFINITE", infinite))
    (tmp_path / "train.py").write_text(NORM_OF_ALL.replace("USED", used))
    found = [f for f in check_paths([tmp_path], Config()).findings if f.code == "XLA110"]
    assert [f.severity for f in found] == [severity]
