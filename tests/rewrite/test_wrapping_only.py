"""DistributedDataParallel in a file that is given the model: its caller has moved it."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

HEAD = "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"


def findings(script: str) -> int:
    done = rewrite_source(parse((HEAD + script).encode(), Path("script.py")))
    assert "gradient_as_bucket_view=True" in done.data.decode()
    return sum("moves no model" in note.message for note in done.findings)


@pytest.mark.parametrize(
    "script",
    [
        "def wrap(model):\n    return DDP(model)\n",
        "def wrap(model):\n    model = DDP(model)\n    return model\n",
        "class Trainer:\n    def __init__(self, model):\n        self.model = model\n"
        "        self.model = DDP(self.model)\n",
        "class Trainer:\n    def __init__(self, models):\n        self.models = models\n"
        "        self.wrapped = {n: DDP(m) for n, m in self.models.items()}\n",
    ],
)
def test_a_model_that_is_given_needs_no_move(script: str) -> None:
    assert findings(script) == 0


@pytest.mark.parametrize(
    "script",
    [
        "def train():\n    model = Net()\n    model = DDP(model)\n",
        "def train():\n    return DDP(Net())\n",
        "class Trainer:\n    def __init__(self):\n        self.net = Net()\n"
        "        self.ddp = DDP(self.net)\n",
    ],
)
def test_a_model_that_is_made_here_has_to_be_moved(script: str) -> None:
    assert findings(script) == 1


MADE_THERE = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def train(loader):
    options = {"in_features": 3, "device": torch.device("DEVICE"), "out_features": 3}
    model = DDP(torch.nn.Linear(**options))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in loader:
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(("device", "told"), [("cuda", 0), ("cpu", 1)])
def test_a_model_that_its_options_make_on_the_device_needs_no_move(
    tmp_path: Path, device: str, told: int
) -> None:
    (tmp_path / "train.py").write_text(MADE_THERE.replace("DEVICE", device))
    done = rewrite_folder(tmp_path, processes=1)
    notes = [note for file in done.files for note in file.findings]
    assert sum("moves no model" in note.message for note in notes) == told
    assert not any(b"set_swap_module" in file.after for file in done.files)
    assert not any(note.rule == "optimizer-order" for note in notes)
