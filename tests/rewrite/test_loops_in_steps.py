"""Loops without gradients in functions that a training step runs for its loss."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style

LABELS = """
import torch


@torch.no_grad()
def targets(model, views):
    model.eval()
    outs = []
    for view in views:
        view = view.cuda()
        out = model(view).softmax(1)
        outs.append(out)
    return torch.stack(outs).mean(0)
"""
TRAIN = """
import torch
{imported}

def main(loader, views):
    model, teacher = torch.nn.Linear(8, 8).cuda(), torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    {before}
    for x in loader:
        x = x.cuda()
        {lines}
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
FEEDS = [
    "wanted = targets(teacher, views)\nloss = (model(x) - wanted).mean()",
    "loss = (model(x) - targets(teacher, views)).mean()",
    "wanted = targets(teacher, views)\nwanted = wanted * 2\nloss = (model(x) - wanted).mean()",
    "apart = x - targets(teacher, views)\nloss = model(x).mean()\nloss += apart.mean()",
]


def rewritten(
    folder: Path, lines: str, before: str = "", style: Style = "native", split: bool = True
) -> tuple[str, list[str]]:
    """Return the file with the function, and the rules of what is said of the whole."""
    train = TRAIN.format(
        imported="from labels import targets\n" if split else "",
        before=before or "pass",
        lines=textwrap.indent(lines, " " * 8).lstrip(),
    )
    if split:
        (folder / "labels.py").write_text(LABELS.lstrip())
        (folder / "train.py").write_text(train.lstrip())
    else:
        (folder / "labels.py").write_text((LABELS + train).lstrip())
    done = rewrite_folder(folder, options=RewriteOptions(style=style), processes=1)
    (labels,) = [file for file in done.files if file.name.name == "labels.py"]
    return labels.after.decode(), [note.rule for file in done.files for note in file.findings]


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize("split", [True, False], ids=["two files", "one file"])
@pytest.mark.parametrize("lines", FEEDS)
def test_a_loop_that_the_loss_needs_is_a_part_of_the_step(
    tmp_path: Path, lines: str, split: bool, style: Style
) -> None:
    """It got a step of its own, within the step, and XLA206 was reported of what had been written."""
    text, rules = rewritten(tmp_path, lines, style=style, split=split)
    assert ".step():" not in text.partition("def main")[0]
    assert not {"XLA116", "XLA206"}.intersection(rules)


@pytest.mark.parametrize(
    ("lines", "before"),
    [
        ("loss = model(x).mean()", "wanted = targets(teacher, views)"),
        ("loss = (model(x) - wanted).mean()", "wanted = targets(teacher, views)"),
        (
            "loss = (model(x) - targets(teacher, views)).mean()",
            "print(targets(teacher, views).shape)",
        ),
    ],
)
def test_a_loop_that_runs_elsewhere_too_keeps_its_steps(
    tmp_path: Path, lines: str, before: str
) -> None:
    text, _ = rewritten(tmp_path, lines, before)
    assert "        with torch_xla.step():\n" in text


STEP = """
import torch


@torch.no_grad()
def targets(model, views):
    outs = []
    for view in views:
        view = view.cuda()
        out = model(view).softmax(1)
        outs.append(out)
    return torch.stack(outs).mean(0)


def train_step(model, teacher, optimizer, x, views, number):
    x = x.cuda()
    loss = LOSS
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if number % 100 == 0:
        SHOW


def main(loader, views):
    model, teacher = torch.nn.Linear(8, 8).cuda(), torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, x in enumerate(loader):
        train_step(model, teacher, optimizer, x, views, number)
"""


@pytest.mark.parametrize(
    ("loss", "show", "own"),
    [
        ("(model(x) - targets(teacher, views)).mean()", "print(number)", False),
        ("model(x).mean()", "print(targets(model, views).shape)", True),
    ],
)
def test_a_function_that_is_the_whole_step(tmp_path: Path, loss: str, show: str, own: bool) -> None:
    """An evaluation in it is none that the loss needs."""
    script = STEP.lstrip().replace("LOSS", loss).replace("SHOW", show)
    (tmp_path / "train.py").write_text(script)
    (file,) = rewrite_folder(tmp_path, processes=1).files
    head = file.after.decode().partition("def train_step")[0]
    assert (".step():" in head) is own


AVERAGED = """
import torch


class EMA:
    def __init__(self, model):
        self.state = {k: v.clone() for k, v in model.state_dict().items()}

    def update(self, model):
        new = get_model_state(model)
        for k in self.state:
            self.state[k].copy_(0.9 * self.state[k] + 0.1 * new[k])


def get_model_state(model):
    return model.state_dict()


@torch.no_grad()
def sample(model, x):
    model.eval()
    for _ in range(2):
        x = model(x)
    model.train()
    return x


def train_one_step(device, model, optimizer, loader):
    x = next(loader).to(device)
    rewards = sample(model, x)
    for i, part in enumerate(x):
        loss = (model(part[None]) * rewards[i]).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def main(loader):
    device = torch.device("cuda")
    model = torch.nn.Linear(8, 8).to(device)
    ema_handler = EMA(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.eval()
    for epoch in range(1):
        for step in range(1, 9):
            loss = train_one_step(device, model, optimizer, loader)
            ema_handler.update(model)
            print(loss)


if __name__ == "__main__":
    main(iter(torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=4)))
"""


def test_an_average_beside_a_loop_with_steps_puts_no_step_around_both(tmp_path: Path) -> None:
    """The whole training stood in one step, of which three errors were reported."""
    (tmp_path / "train.py").write_text(AVERAGED.lstrip())
    (train,) = rewrite_folder(tmp_path, processes=1).files
    before, _, main = train.after.decode().partition("def main")
    assert before.count("with torch_xla.step():") == 1
    assert "step()" not in main.replace("optimizer.step()", "")


UPDATES = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from base import Base


class Trainer(Base):
    def __init__(self, rank, net, copies):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        self.model = DDP(net.cuda())
        self.copies = {decay: copy.cuda() for decay, copy in copies.items()}
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    @torch.no_grad()
    def update(self, copy, decay):
        weights = dict(orig_module(self.model).named_parameters())
        for name, kept in copy.named_parameters():
            kept.mul_(decay).add_(weights[name], alpha=1 - decay)

    def train_step(self, x):
        x = x.cuda()
        loss = self.model(x).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            for decay, net in self.copies.items():
                {turn}
        return loss


def orig_module(module):
    return module.module if hasattr(module, "module") else module
"""
LOOP = """
class Base:
    def train_step(self, x):
        raise NotImplementedError

    def train(self, loader):
        for x in loader:
            loss = self.train_step(x)
        return loss
"""


@pytest.mark.parametrize("turn", ["self.update(net, decay)", "self.seen = net(x).mean()"])
def test_a_loop_over_models_in_a_step_of_another_file(tmp_path: Path, turn: str) -> None:
    """It got a step of its own, by a function named as a module, or as an evaluation of these models."""
    (tmp_path / "trainer.py").write_text(UPDATES.replace("{turn}", turn).lstrip())
    (tmp_path / "base.py").write_text(LOOP.lstrip())
    files = {file.name.name: file for file in rewrite_folder(tmp_path, processes=1).files}
    assert "with torch_xla.step():" in files["base.py"].after.decode()
    assert "torch_xla.step" not in files["trainer.py"].after.decode()
    assert "XLA116" not in [note.rule for note in files["trainer.py"].findings]


EVALUATE = """
@torch.no_grad()
def evaluate(model, teacher, loader, views):
    model.eval()
    for x in loader:
        x = x.cuda()
        {student}
        wanted = targets(teacher, views)
        print((out - wanted).mean().item())


"""


@pytest.mark.parametrize(("student", "own"), [("out = model(x)", False), ("out = x", True)])
def test_an_evaluation_that_runs_a_model_has_the_loop_in_its_step(
    tmp_path: Path, student: str, own: bool
) -> None:
    train = TRAIN.format(
        imported="from labels import targets\n",
        before="pass",
        lines="wanted = targets(teacher, views)\n        loss = (model(x) - wanted).mean()",
    )
    evaluated = train.replace("def main", EVALUATE.format(student=student).lstrip() + "def main")
    (tmp_path / "labels.py").write_text(LABELS.lstrip())
    (tmp_path / "train.py").write_text(evaluated.lstrip())
    done = rewrite_folder(tmp_path, processes=1)
    (labels,) = [file for file in done.files if file.name.name == "labels.py"]
    assert (".step():" in labels.after.decode()) is own
