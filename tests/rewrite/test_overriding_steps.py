"""A `train_step` of a subclass in another file gets a step, as that of its base does."""

from __future__ import annotations

from pathlib import Path

from migrate.rewrite.folder import rewrite_folder

BASE = """
import torch


class Trainer:
    def __init__(self, network, device="cuda"):
        self.device = device
        self.network = network.to(device)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.1)

    def train_step(self, batch):
        loss = self.network(batch.to(self.device)).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def train(self, batches):
        return [self.train_step(batch) for batch in batches]

    def run(self, batches):
        losses = []
        for batch in batches:
            losses.append(self.train_step(batch))
        return losses
"""
SUB = """
import torch
from base import Trainer


class Clipping(Trainer):
    def train_step(self, batch):
        loss = self.network(batch.to(self.device)).mean()
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()


class Logging(Trainer):
    def train_step(self, batch):
        loss = super().train_step(batch)
        print(loss)
        return loss
"""
STEP = "with torch_xla.step():"


def test_each_method_that_trains_gets_its_own_step(tmp_path: Path) -> None:
    """Without one, nothing ended the graph of the subclass: each step compiled again."""
    (tmp_path / "base.py").write_text(BASE.lstrip())
    (tmp_path / "sub.py").write_text(SUB.lstrip())
    done = rewrite_folder(tmp_path, processes=1)
    texts = {file.name.name: file.after.decode() for file in done.files}
    clipping, _, logging = texts["sub.py"].partition("class Logging")
    assert texts["base.py"].count(STEP) == 1
    assert clipping.count(STEP) == 1
    assert STEP not in logging
    assert not [note for file in done.files for note in file.findings if note.rule == "step"]
