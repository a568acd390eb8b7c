"""Ordinary code is left alone, and a script with every kind of read is reported where it matters."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.check.finding import Finding
from migrate.syntax.source import parse, read


def check(script: str) -> tuple[Finding, ...]:
    return check_source(parse(inspect.cleandoc(script).encode() + b"\n", Path("s.py")), Config())


ORDINARY = """
import argparse
import math
from pathlib import Path

import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, hidden=8, dropout=None):
        super().__init__()
        self.first = nn.Linear(4, hidden)
        self.dropout = nn.Dropout(dropout) if dropout else None
        self.register_buffer("table", torch.zeros(3))

    def forward(self, x, mask=None, return_features=False):
        if mask is not None:
            x = torch.where(mask, x, torch.zeros_like(x))
        if x.dim() == 2 and x.size(0) > 1 and self.training:
            x = x.unsqueeze(1)
        assert x.shape[-1] == 4, f"{x.shape}"
        x = self.first(x)
        if self.dropout:
            x = self.dropout(x)
        for layer in range(x.ndim):
            x = x + layer
        return (x, mask) if return_features else x


def histogram(labels):
    counts = np.bincount(labels)
    rows = counts.nonzero()[0]
    found = np.unique(labels)
    table = labels[labels > 0]
    return rows, found, table, np.where(labels > 1), labels.astype(np.float64).item()


@torch.no_grad()
def evaluate(net, loader):
    net.eval()
    total, rows = 0.0, []
    for x, y in loader:
        out = net(x)
        total += out.mean().item()
        rows.append(out.cpu().numpy())
        print("batch", float(out.sum()))
    return total, np.concatenate(rows)


def train(net, loader, optimizer, args):
    best = math.inf
    for epoch in range(args.epochs):
        for group in optimizer.param_groups:
            group["lr"] = float(args.lr) * 0.1**epoch
        for step, (x, y) in enumerate(loader):
            loss = net(x).mean() * float(args.scale)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 100 == 0:
                print(f"{epoch} {step} {loss.item():.3f}")
        score, _ = evaluate(net, loader)
        if score < best:
            best = score
            torch.save(net.state_dict(), Path(args.out) / "net.pt")
    print(loss.item(), best)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()
    print(args, int(args.lr), torch.__version__)
    torch.manual_seed(0)
    net = Net()
    data = torch.randn(16, 4)
    print(data.nonzero().shape, data[data > 0].mean().item())
    train(net, torch.utils.data.DataLoader(data), torch.optim.SGD(net.parameters(), args.lr), args)


if __name__ == "__main__":
    main()
"""


def test_ordinary_code_is_left_alone() -> None:
    assert [(one.line, one.code, one.message) for one in check(ORDINARY)] == []


READS = """
import torch


def report(loss, meter):
    meter.update(loss.item())


def train(net, loader, optimizer, meter, rank):
    for step, (x, y) in enumerate(loader):
        x, y = x.cuda(), y.cuda()
        loss = net(x, y)
        {inside}
        loss.backward()
        optimizer.step()
        {below}
"""


@pytest.mark.parametrize(
    ("statement", "inside", "below"),
    [
        ("a = loss.item()", "XLA201 warning", "XLA201 info"),
        ("a = float(loss)", "XLA202 warning", "XLA202 info"),
        ("a = loss.detach().cpu()", "XLA203 warning", "XLA203 info"),
        ("print(loss)", "XLA204 warning", "XLA204 info"),
        ("report(loss, meter)", "XLA201 warning", "XLA208 info"),
        ("a = loss.detach()", "", ""),
        ("a = x.shape[0] * len(y)", "", ""),
        ("if step % 10 == 0: print(loss)", "XLA204 warning", ""),
        ("if rank == 0: print(loss)", "XLA305 error", "XLA204 info"),
        ("if loss > 3: break", "XLA110 warning", "XLA110 info"),
        ("rows = x.nonzero()", "XLA101 warning", "XLA101 warning"),
        ("if step % 10 == 0: rows = x.nonzero()", "XLA101 warning", "XLA101 info"),
        ("rows = torch.where(x > 0, x, y)", "", ""),
        ("rows = x[y == 1]", "XLA103 warning", "XLA103 warning"),
    ],
)
def test_the_place_decides(statement: str, inside: str, below: str) -> None:
    for place, expected in (("inside", inside), ("below", below)):
        filled = {"inside": "pass", "below": "pass"} | {place: statement}
        found = [f"{one.code} {one.severity}" for one in check(READS.format(**filled))]
        assert found == ([expected] if expected else []), place


def test_names_are_resolved_not_matched() -> None:
    assert check("from my_torch import cuda, apex\n\ncuda.cudart()\napex.amp()\ntorch = 1\n") == ()
    (one,) = check("from torch import cuda as c\n\nc.cudart()\n")
    assert one.code == "XLA801"


def test_a_module_of_the_project_may_have_the_name_of_a_library(tmp_path: Path) -> None:
    package = tmp_path / "triton" / "toolkit"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package.parent / "metrics.py").write_text("")
    (package / "core.py").write_text("class Metrics: ...\n")
    script = tmp_path / "metrics.py"
    script.write_text("import torch\nfrom triton.toolkit.core import Metrics\n")
    assert check_source(read(script), Config()) == ()
    script.write_text("import torch\nimport triton.language as tl\n")
    assert [one.code for one in check_source(read(script), Config())] == ["XLA402"]


def test_what_only_cuda_runs_is_left_to_it() -> None:
    script = """
    import shims
    import torch

    if shims.device_type() == "cuda":
        torch.cuda.cudart()
    """
    assert check(script) == ()
    (one,) = check(script.replace('== "cuda"', '!= "cuda"'))
    assert one.code == "XLA801"


def test_what_only_evaluation_runs_is_no_part_of_the_step() -> None:
    script = """
    import torch


    class Criterion(torch.nn.Module):
        def forward(self, x, net):
            if not self.training:
                self.errors(x)
            if net.training:
                loss = x.mean()
            else:
                loss = x.mean().item()
            return loss

        def errors(self, x):
            return x.sum().item()
    """
    assert check(script) == ()
    (one,) = check(script.replace("if not self.training", "if self.training"))
    assert one.code == "XLA201"


BETWEEN = """
import torch
import torch.nn.functional as F
import torch_xla


def train(model, loader, optimizer, rank, path):
    for step, (x, y) in enumerate(loader):
        with torch_xla.step():
            out = model(x.to("xla"))
            F.cross_entropy(out, y.to("xla")).backward()
            optimizer.step()
        if rank == 0:
            {line}
"""


@pytest.mark.parametrize(
    "line",
    ["print(F.l1_loss(out, x).item())", "torch_xla.sync()", "a = out.sum(); print(a.item())"],
)
def test_what_parts_the_graphs_is_an_error_wherever_it_stands(line: str) -> None:
    """The linter and the rewrite agree: on a TPU the replicas wait for each other."""
    found = check(BETWEEN.format(line=line))
    assert {(one.code, str(one.severity)) for one in found} == {("XLA305", "error")}
