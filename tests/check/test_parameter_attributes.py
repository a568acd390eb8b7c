"""XLA868: attributes and hooks of parameters that the move to the device loses, in whatever file."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.check.hazard import Severity
from migrate.check.project import check_paths
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style
from migrate.syntax.source import parse

NET = """
import torch
from torch.nn import Parameter


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.scale = Parameter(torch.ones(4))
        self.size = 4
        MARKS

    def forward(self, x):
        return self.layer(x) * self.scale
"""
MARKS = """
def mark(net, keep):
    for name, p in net.named_parameters():
        p.decays = name != "scale"
        p.register_hook(keep)
        p.requires_grad = True
"""
TRAIN = """
import torch
from marks import mark
from net import Net


def setup(net):
    mark(net, print)


def main():
    net = Net()
    BEFORE
    net.cuda()
    AFTER
    decayed = [p for p in net.parameters() if getattr(p, "decays", True)]
    optimizer = torch.optim.SGD(decayed, lr=0.1)
    for x in [torch.ones(4)]:
        loss = net(x.cuda()).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
"""


def codes(found: object) -> list[int]:
    return [one.line for one in found if one.code == "XLA868"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ("self.scale.decays = False", True),
        ("self.layer.weight.decays = False", True),
        ("self.layer.bias.decays: bool = False", True),
        ("setattr(self.scale, 'decays', False)", True),
        ("w = self.scale; w.decays = False", True),
        ("for p in self.parameters(): self.scale.decays = False", True),
        ("self.layer.weight.register_post_accumulate_grad_hook(print)", True),
        ("self.scale.requires_grad = False", False),
        ("self.layer.weight.data = torch.ones(4, 4)", False),
        ("setattr(self.layer.weight, 'requires_grad', False)", False),
        ("self.layer.decays = False", False),
        ("self.layer.register_forward_hook(print)", False),
        ("setattr(self, 'size', 5)", False),
    ],
)
def test_what_a_module_sets_when_it_is_made(line: str, reported: bool) -> None:
    found = check_source(parse(NET.replace("MARKS", line).encode(), Path("net.py")), Config())
    assert bool(codes(found)) is reported


@pytest.mark.parametrize(
    ("above", "below", "reported"),
    [
        ("net.weight.tag = 1", "net.cuda()", True),
        ("net.bias.register_hook(print)", "net = net.to('cuda')", True),
        ("net.cuda()", "net.weight.tag = 1", False),
        ("net = net.to('cuda')", "net.weight.tag = 1", False),
        ("limit = make()", "limit.weight.tag = 1", False),
    ],
)
def test_a_weight_of_a_model(above: str, below: str, reported: bool) -> None:
    text = f"import torch\n\n\ndef main(make):\n    net = torch.nn.Linear(4, 4)\n    {above}\n    {below}\n"
    found = check_source(parse(text.encode(), Path("train.py")), Config())
    assert bool(codes(found)) is reported


def project(folder: Path, before: str, after: str) -> None:
    train = TRAIN.replace("BEFORE", before).replace("AFTER", after)
    for name, text in (("net", NET.replace("MARKS", "pass")), ("marks", MARKS), ("train", train)):
        (folder / f"{name}.py").write_text("import torch\n" * (name == "marks") + text)


@pytest.mark.parametrize(
    ("before", "after", "reported"),
    [
        ("mark(net, print)", "pass", True),
        ("setup(net)", "pass", True),
        ("pass", "mark(net, print)", False),
        ("pass", "setup(net)", False),
        ("pass", "pass", False),
    ],
)
def test_a_loop_in_another_file(tmp_path: Path, before: str, after: str, reported: bool) -> None:
    project(tmp_path, before, after)
    found = check_paths([tmp_path], Config()).findings
    assert bool([one for one in found if one.code == "XLA868"]) is reported


@pytest.mark.parametrize(
    ("made", "reported"),
    [
        ("self.apply(partial(init, deep=1))", False),
        ("self.apply(init); self.cuda()", True),
        ("self.apply(init); init(self)", True),
    ],
)
def test_what_an_initializer_reads_is_read_before_the_move(
    tmp_path: Path, made: str, reported: bool
) -> None:
    initializer = """
from functools import partial


def init(module, deep=0):
    if not getattr(module.layer.bias, "no_reinit", False):
        module.layer.bias.data.zero_()
"""
    marks = f"self.layer.bias.no_reinit = True\n        {made}"
    (tmp_path / "net.py").write_text(NET.replace("MARKS", marks) + initializer)
    (tmp_path / "train.py").write_text("from net import Net\n\nnet = Net().cuda()\n")
    found = check_paths([tmp_path], Config()).findings
    assert (
        bool([f for f in found if f.code == "XLA868" and f.severity != Severity.INFO]) is reported
    )


@pytest.mark.parametrize("style", ["native", "portable"])
def test_the_rewrite_reports_it_too(tmp_path: Path, style: Style) -> None:
    project(tmp_path, "setup(net)", "pass")
    done = rewrite_folder(tmp_path, options=RewriteOptions(style=style), processes=1)
    notes = [(name.name, note.line) for name, note in done.left_to_do if note.rule == "XLA868"]
    assert notes == [("marks.py", 5), ("marks.py", 6)]


READERS = {
    "attribute": "def groups(net):\n    return [p for p in net.parameters() if p.decays]\n",
    "getattr": "def groups(net):\n    return [p for p in net.parameters() if getattr(p, 'decays', 1)]\n",
    "key": "KEY = 'decays'\n",
    "none": "def groups(net):\n    return list(net.parameters())\n",
    "set": "def mark(net):\n    for p in net.parameters():\n        setattr(p, 'decays', True)\n",
    "self": "class Group:\n    def size(self):\n        return self.decays\n",
}


@pytest.mark.parametrize(
    ("reader", "severity"),
    [
        ("attribute", Severity.WARNING),
        ("getattr", Severity.WARNING),
        ("key", Severity.WARNING),
        ("none", None),
        ("set", None),
        ("self", None),
    ],
)
def test_an_attribute_that_nobody_reads_is_no_loss(
    tmp_path: Path, reader: str, severity: Severity | None
) -> None:
    (tmp_path / "net.py").write_text(NET.replace("MARKS", "self.scale.decays = False"))
    (tmp_path / "groups.py").write_text(READERS[reader])
    of_folder = [one for one in check_paths([tmp_path], Config()).findings if one.code == "XLA868"]
    assert [one.severity for one in of_folder] == [severity] * (severity is not None)
    of_file = check_paths([tmp_path / "net.py"], Config()).findings
    found = [one for one in of_file if one.code == "XLA868"]
    assert [one.severity for one in found] == [Severity.INFO]
    assert "no file seen here reads" in found[0].message


def test_a_hook_that_is_lost_is_reported_though_nobody_reads_it(tmp_path: Path) -> None:
    line = "self.scale.register_hook(print)"
    (tmp_path / "net.py").write_text(NET.replace("MARKS", line))
    assert codes(check_paths([tmp_path], Config()).findings)
