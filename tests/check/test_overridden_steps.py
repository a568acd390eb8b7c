"""XLA201 and XLA203: a method of a step, overridden in another file, reads what the base class gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.project import check_paths

BASE = """\
import torch


class Trainer:
    def __init__(self, model):
        self.model = model.cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def size_of(self, batch):
        return batch.shape[0]

    def forward_step(self, batch):
        return self.model(batch.cuda()).pow(2).mean()

    def training_step(self, batch):
        loss = self.forward_step(batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def train(self, batches):
        for batch in batches:
            loss = self.training_step(batch)
        return loss
"""
TEXT = """\
from base import Trainer


class TextTrainer(Trainer):
    def METHOD(self, batch):
        READ
"""


def lines(folder: Path, method: str, read: str) -> list[str]:
    (folder / "base.py").write_text(BASE)
    text = TEXT.replace("METHOD", method).replace("READ", read.replace("\n", "\n        "))
    (folder / "text.py").write_text(text)
    found = check_paths([folder], Config()).findings
    return [text.splitlines()[one.line - 1].strip() for one in found if one.path.name == "text.py"]


@pytest.mark.parametrize(
    ("method", "read"),
    [
        ("forward_step", "loss = super().forward_step(batch)\nprint(loss.item())\nreturn loss"),
        (
            "forward_step",
            "x = super().forward_step(batch)\nprint(x.detach().cpu().item())\nreturn x",
        ),
        ("forward_step", "x = super().forward_step(batch)\nprint(x.mean().item())\nreturn x"),
        ("forward_step", "x = Trainer.forward_step(self, batch)\nprint(x.cpu())\nreturn x"),
    ],
)
def test_a_read_in_an_overridden_method_is_reported(tmp_path: Path, method: str, read: str) -> None:
    assert read.splitlines()[1] in lines(tmp_path, method, read)


def test_a_number_of_the_host_is_no_read(tmp_path: Path) -> None:
    read = "count = self.size_of(batch)\nprint(count)\nreturn super().forward_step(batch)"
    assert lines(tmp_path, "forward_step", read) == []


def test_in_a_marked_step_all_of_a_method_that_is_a_whole_step_counts(tmp_path: Path) -> None:
    marked = BASE.replace("import torch\n", "import torch\nimport torch_xla\n", 1).replace(
        "            loss = self.training_step(batch)",
        "            with torch_xla.step():\n                loss = self.training_step(batch)",
    )
    (tmp_path / "base.py").write_text(marked.replace(".cuda()", '.to("xla")'))
    read = "loss = super().training_step(batch)\n        print(loss.detach().item())\n        return loss"
    text = TEXT.replace("METHOD", "training_step").replace("READ", read)
    (tmp_path / "text.py").write_text(text)
    found = check_paths([tmp_path], Config()).findings
    assert [(one.path.name, one.code) for one in found] == [("text.py", "XLA201")]
