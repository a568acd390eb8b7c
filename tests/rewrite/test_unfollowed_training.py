"""Loops that train through functions that the source does not show; two folders of one name."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Note
from migrate.syntax.source import parse

SCRIPT = """\
import torch
import torch.nn.functional as F
import tqdm

from engine.io import save_checkpoint
from engine.loop import Trainer
from engine.train import backward, train_and_validate, train_one_epoch, train_step
from .near import update


def train(args, model, loader, optimizer, scaler):
    model = model.cuda()
{body}


class Runner:
    def __init__(self, trainer):
        self.trainer = trainer

    def run(self, loader):
        print(loader)
{method}
"""


def reports(body: str, method: str = "pass") -> list[Note]:
    text = SCRIPT.format(
        body=textwrap.indent(textwrap.dedent(body).strip(), "    "),
        method=textwrap.indent(textwrap.dedent(method).strip(), "        "),
    )
    done = rewrite_source(parse(text.encode(), Path("script.py")))
    return [note for note in done.findings if note.rule == "step"]


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (
            """
            for x, y in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x.cuda()), y.cuda())
                backward(args, loss, scaler, optimizer, model)
            """,
            "backward",
        ),
        (
            """
            batches = iter(loader)
            for step in range(args.steps):
                x, y = next(batches)
                loss = F.cross_entropy(model(x.cuda()), y.cuda())
                update(loss, optimizer)
            """,
            "update",
        ),
        ("for x, y in loader:\n    train_step(model, x.cuda(), y, optimizer)", "train_step"),
        (
            "for epoch in range(3):\n    train_one_epoch(model, loader, optimizer)\n"
            "    save_checkpoint(model, optimizer)",
            "train_one_epoch",
        ),
        (
            "trainer = Trainer(args)\nfor x in loader:\n    trainer.train_step(x.cuda())",
            "train_step",
        ),
    ],
)
def test_a_loop_that_hands_its_training_on_is_reported(body: str, name: str) -> None:
    (note,) = reports(body.replace("\\\n", "\n"))
    assert name in note.message
    assert "# migrate: step" in note.message


def test_an_object_of_an_unknown_class(tmp_path: Path) -> None:
    (note,) = reports(
        "print(model)", "for x in loader:\n    self.trainer.optimize_parameters(x.cuda())"
    )
    assert "optimize_parameters" in note.message


@pytest.mark.parametrize(
    "body",
    [
        "for x in tqdm.tqdm(loader):\n    print(model(x.cuda()))",
        "for epoch in range(3):\n    save_checkpoint(model, optimizer)",
        "for x in loader:\n    print(model(x.cuda()).mean(), optimizer)",
        "for name in args.names:\n    torch.optim.lr_scheduler.StepLR(optimizer, 3)",
    ],
)
def test_a_loop_that_trains_nothing_is_not(body: str) -> None:
    assert reports(body) == []


TRAIN = """\
import torch
import torch.nn.functional as F

from src.training.engine import backward


def train(model, loader, optimizer):
    model = model.cuda()
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.cuda()), y.cuda())
        backward(loss, optimizer)
"""
ENGINE = "def backward(loss, optimizer):\n    loss.backward()\n    optimizer.step()\n"


def test_of_two_folders_of_one_name_the_one_that_has_the_module_counts(tmp_path: Path) -> None:
    for name, text in {
        "src/__init__.py": "",
        "src/training/__init__.py": "",
        "src/training/engine.py": ENGINE,
        "apps/other/src/training/train.py": TRAIN,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    files = {file.name.as_posix(): file for file in rewrite_folder(tmp_path).files}
    done = files["apps/other/src/training/train.py"]
    assert b"with torch_xla.step():" in done.after
    assert not [note for note in done.findings if note.rule == "step"]


def test_the_nearest_folder_comes_first(tmp_path: Path) -> None:
    for name, text in {
        "src/training/engine.py": "def backward(loss, optimizer):\n    print(loss)\n",
        "apps/other/src/training/engine.py": ENGINE,
        "apps/other/src/training/train.py": TRAIN,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    files = {file.name.as_posix(): file for file in rewrite_folder(tmp_path).files}
    assert b"with torch_xla.step():" in files["apps/other/src/training/train.py"].after


def test_a_folder_that_is_the_package_itself(tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "engine.py").write_text(ENGINE)
    (package / "train.py").write_text(TRAIN.replace("src.training.engine", "pack.engine"))
    files = {file.name.as_posix(): file for file in rewrite_folder(package).files}
    assert b"with torch_xla.step():" in files["train.py"].after
