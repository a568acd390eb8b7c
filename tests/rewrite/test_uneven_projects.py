"""What one replica alone does to its tensors in a step whose parts stand in several files."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style

BASE = """
import torch.distributed as dist


class Trainer:
    def __init__(self, net, steps):
        self.steps = steps
        if dist.is_initialized():
            self.place = dist.get_rank()
            self.talks = self.place == 0
        else:
            self.place = 0
            self.talks = True
        self.build(net)

    def run(self, loader):
        for x in loader:
            log = self.turn(x.cuda())
            if self.talks:
                print(log)
"""
AVERAGES = """
def follow(shadow, params, rate):
    for s, p in zip(shadow, params):
        s.mul_(rate).add_(p.detach(), alpha=1 - rate)


def size(params):
    return sum(p.numel() for p in params)
"""
BASIC = """
import copy

import torch
from averages import follow, size
from base import Trainer
from torch.nn.parallel import DistributedDataParallel as DDP


class Basic(Trainer):
    def build(self, net):
        self.model = DDP(net.cuda(), device_ids=[self.place])
        self.params = [p for p in net.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.params, lr=1e-3)
        self.seen = torch.zeros(1).cuda()
        if self.talks:
            self.shadows = [copy.deepcopy(self.params) for _ in (0.9, 0.99)]

    def update(self):
        for i, rate in enumerate((0.9, 0.99)):
            for p, s in zip(self.params, self.shadows[i]):
                s.detach().mul_(rate).add_(p, alpha=1 - rate)

    def count(self):
        self.steps += 1

    def turn(self, x):
        self.optimizer.zero_grad()
        loss = (self.model(x) - x).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        {test}
        return loss
"""
TRAIN = """
import torch
import torch.distributed as dist
from basic import Basic


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    Basic(torch.nn.Linear(4, 4), 4).run([torch.randn(3, 4) for _ in range(4)])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""
WRONG = [
    "if self.talks:\n            self.update()",
    "if self.place == 0:\n            self.update()",
    "if self.talks:\n            follow(self.shadows[0], self.params, 0.9)",
    "if self.talks:\n            self.seen += loss.detach()",
    "if self.talks and x is not None:\n            self.seen.copy_(loss.detach())",
]
FINE = [
    "if self.talks:\n            self.count()",
    "if self.talks:\n            print(size(self.params))",
    "if self.steps > 3:\n            self.update()",
    "self.seen += loss.detach()",
]


def rewritten(folder: Path, test: str, style: Style) -> tuple[str, list[str]]:
    files = {"base": BASE, "averages": AVERAGES, "train": TRAIN}
    files["basic"] = BASIC.replace("{test}", test)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text).lstrip())
    done = rewrite_folder(folder, processes=1, options=RewriteOptions(style=style))
    (basic,) = [one for one in done.files if one.name.name == "basic.py"]
    notes = [note.message for one in done.files for note in one.findings if "XLA31" in note.rule]
    return basic.after.decode(), notes


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize("test", WRONG)
def test_the_graph_ends_before(test: str, style: Style, tmp_path: Path) -> None:
    text, notes = rewritten(tmp_path, test, style)
    sync = "torch_xla.sync()" if style == "native" else "shims.synchronize()"
    assert f"self.optimizer.step()\n        {sync}\n        {test}\n        return" in text
    assert notes == []


@pytest.mark.parametrize("test", FINE)
def test_no_graph_ends(test: str, tmp_path: Path) -> None:
    text, notes = rewritten(tmp_path, test, "native")
    assert "sync()" not in text
    assert notes == []
