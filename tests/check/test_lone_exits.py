"""XLA879: a replica that ends itself for its own loss, after the rewrite and where it is reduced later."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.left.codes import code_of

TRAIN = """\
import math
import sys

import torch
import torch.distributed as dist


def mean(value):
    total = torch.tensor(value).cuda()
    dist.all_reduce(total)
    return total.item()


def train(model, loader, optimizer):
    for x in loader:
        loss = model(x.cuda()).mean()
        loss_value = {value}
        if not math.isfinite(loss_value):
            sys.exit(1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        print(mean(loss_value))


if __name__ == "__main__":
    dist.init_process_group("nccl")
    train(torch.nn.Linear(2, 2).cuda(), [], None)
"""


@pytest.mark.parametrize(("value", "is_own"), [("loss.item()", True), ("mean(loss.item())", False)])
def test_rewrite_reports_the_end_of_one_replica(tmp_path: Path, value: str, is_own: bool) -> None:
    (tmp_path / "train.py").write_text(TRAIN.format(value=value))
    (file,) = rewrite_folder(tmp_path, processes=1).files
    lines = [note.line for note in file.findings if note.rule == "XLA879"]
    assert lines == ([19] if is_own else [])


def test_a_check_of_settings_in_a_function_that_the_loop_calls_is_no_end(tmp_path: Path) -> None:
    script = TRAIN.format(value="check(loss, KIND)").replace(
        "def train(",
        "KIND = input()\n\n\ndef check(loss, kind):\n    if kind not in ('l1', 'l2'):\n"
        "        raise NotImplementedError(kind)\n    return mean(loss.item())\n\n\ndef train(",
    )
    (tmp_path / "train.py").write_text(script)
    (file,) = rewrite_folder(tmp_path, processes=1).files
    assert [note for note in file.findings if note.rule == "XLA879"] == []


LOSS_OF = """\
def loss_of_one_batch(batch, model, criterion, ret=None):
    result = {"loss": criterion(batch, model(batch))}
    return result[ret] if ret else result
"""
SCALER = """\
import torch


class NativeScaler:
    def __init__(self):
        self.scaler = torch.cuda.amp.GradScaler()

    def __call__(self, loss, optimizer, parameters=None):
        self.scaler.scale(loss).backward()
        self.scaler.step(optimizer)
        self.scaler.update()
"""
OF_ELSEWHERE = """\
import math
import sys

import torch
import torch.distributed as dist

from losses import loss_of_one_batch
from scalers import NativeScaler


def train(model, criterion, loader, optimizer):
    dist.init_process_group("nccl")
    model.cuda()
    loss_scaler = NativeScaler()
    for batch in loader:
        loss_tuple = loss_of_one_batch(batch.cuda(), model, criterion, ret="loss")
        loss, details = loss_tuple
        loss_value = float(loss)
        if not math.isfinite(loss_value):
            sys.exit(1)
        {backward}
"""


@pytest.mark.parametrize(
    "backward", ["loss.backward(); optimizer.step()", "loss_scaler(loss, optimizer)"]
)
def test_a_loss_that_a_function_of_another_file_gives(tmp_path: Path, backward: str) -> None:
    (tmp_path / "losses.py").write_text(LOSS_OF)
    (tmp_path / "scalers.py").write_text(SCALER)
    (tmp_path / "train.py").write_text(OF_ELSEWHERE.format(backward=backward))
    done = rewrite_folder(tmp_path, processes=1)
    notes = [note for file in done.files for note in file.findings]
    assert {"XLA202", "XLA879"} <= {code_of(note) for note in notes}


STEP = """\
import math
import sys

import torch.distributed as dist


class Trainer:
    def train_step(self, x):
        loss = self.net(x.cuda()).mean()
        self.optimizer.zero_grad()
        {update}
        if {test}:
            sys.exit(1)


def main(trainer, loader):
    dist.init_process_group("nccl")
    for x in loader:
        trainer.train_step(x)
"""


@pytest.mark.parametrize(
    ("update", "test", "is_reported"),
    [
        ("loss.backward(); self.optimizer.step()", "loss > 1e6", True),
        ("loss.backward()", "not math.isfinite(loss)", True),
        ("return loss.isnan().any()", "loss > 1e6", False),
        ("pass", "x.shape[0] < 3", False),
    ],
)
def test_a_function_that_makes_a_part_of_the_step(
    tmp_path: Path, update: str, test: str, is_reported: bool
) -> None:
    (tmp_path / "train.py").write_text(STEP.format(update=update, test=test))
    (file,) = rewrite_folder(tmp_path, processes=1).files
    assert [note.line for note in file.findings if note.rule == "XLA879"] == (
        [13] if is_reported else []
    )


OF_THE_FORWARD = """\
import torch
import torch.distributed as dist


class Trainer:
    def part(self, x):
        out = self.net(x.cuda())
        if {test}:
            raise ValueError("no number")
        return out

    def train(self, loader):
        for x in loader:
            self.optimizer.zero_grad()
            self.part(x).mean().backward()
            self.optimizer.step()


def main(trainer, loader):
    dist.init_process_group("nccl")
    trainer.train(loader)
"""


@pytest.mark.parametrize(
    ("test", "lines"),
    [
        ("torch.isnan(out).any()", [9]),
        ("out.isfinite().all().logical_not()", [9]),
        ("self.kind > 3", []),
    ],
)
def test_a_function_that_the_step_calls_asks_for_finite_numbers(
    tmp_path: Path, test: str, lines: list[int]
) -> None:
    (tmp_path / "train.py").write_text(OF_THE_FORWARD.format(test=test))
    (file,) = rewrite_folder(tmp_path, processes=1).files
    assert [note.line for note in file.findings if note.rule == "XLA879"] == lines


def test_a_setting_whose_default_is_a_string_is_no_metric(tmp_path: Path) -> None:
    """By its name alone, `loss_fn` would be a loss: each replica's own value."""
    (tmp_path / "train.py").write_text(
        "import torch\nimport torch.distributed as dist\n\n\n"
        "class Trainer:\n"
        '    def __init__(self, model, optimizer, loss_fn="l1"):\n'
        "        self.model, self.optimizer, self.loss_fn = model, optimizer, loss_fn\n\n"
        "    def train(self, loader):\n"
        "        for x in loader:\n"
        "            loss = self.model(x.cuda()).mean()\n"
        '            if self.loss_fn not in ("l1", "l2"):\n'
        "                raise NotImplementedError(self.loss_fn)\n"
        "            self.optimizer.zero_grad()\n"
        "            loss.backward()\n"
        "            self.optimizer.step()\n\n\n"
        "def main(make, loader):\n"
        '    dist.init_process_group("nccl")\n'
        "    make(Trainer).train(loader)\n"
    )
    (file,) = rewrite_folder(tmp_path, processes=1).files
    assert [note for note in file.findings if note.rule == "XLA879"] == []
