"""DistributedDataParallel in a file that is given the model: its caller has moved it."""

from __future__ import annotations

from pathlib import Path

import pytest

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
