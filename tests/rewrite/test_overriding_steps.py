"""A `train_step` of a subclass in another file gets a step, as that of its base does."""

from __future__ import annotations

from pathlib import Path

import pytest

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


AGENT = """
import torch
from updates import Updater, backward


class Agent:
    def __init__(self, net, memory):
        self.net = net.cuda()
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        self.updater = Updater(self.optimizer)
        self.memory = memory

    def compute_loss(self, batch):
        drawn = batch["drawn"] == 1.0
        return {"loss": self.net.value(batch["seen"][drawn]).mean()}

    def update(self, steps):
        for i in range(steps):
            batch = self.memory.sample(4)
            info = self.compute_loss(batch)
            loss = info["loss"]
            CALL
"""
UPDATES = """
class Updater:
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def backward(loss, optimizer):
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("call", ["self.updater.step(loss)", "backward(loss, self.optimizer)"])
def test_the_forward_of_a_loss_that_a_function_takes_belongs_to_the_step(
    tmp_path: Path, call: str
) -> None:
    """The function ran in a step of its own, and nothing was reported of the forward."""
    (tmp_path / "updates.py").write_text(UPDATES)
    (tmp_path / "agent.py").write_text(AGENT.replace("CALL", call))
    done = rewrite_folder(tmp_path, processes=1)
    agent = next(file for file in done.files if file.name.name == "agent.py").after.decode()
    assert agent.index(STEP) < agent.index("self.compute_loss(batch)") < agent.index(call)
    assert ["boolean mask" in finding.message for _, finding in done.left_to_do] == [True]
