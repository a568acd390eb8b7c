"""A LightningModule that no Trainer trains: a module of torch, in a loop of the project's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite

NET = """\
import pytorch_lightning as pl
import torch
from torch import nn


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x) * torch.ones(8).cuda()
"""
LOOP = """\

def main():
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        loss = model(torch.randn(4, 8).cuda()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
"""
MANUAL = """
    def training_step(self, batch, index):
        for part in batch:
            loss = self(part).mean()
            loss.backward()
            self.optimizers().step()
"""


def _changed(folder: Path, files: dict[str, str], style: Style = "native") -> dict[str, bool]:
    for name, text in files.items():
        (folder / name).write_text(text)
    done = rewrite_folder(folder, options=RewriteOptions(style=style), processes=1)
    assert not any(n.rule == "frameworks" for f in done.files for n in f.findings if f.changed)
    return {file.name.as_posix(): file.changed for file in done.files}


@pytest.mark.parametrize("style", ["native", "portable"])
def test_it_is_rewritten_where_a_loop_of_the_project_trains_it(
    tmp_path: Path, style: Style
) -> None:
    files = {"net.py": NET, "train.py": f"import torch\nfrom net import Net\n\n{LOOP}"}
    assert _changed(tmp_path, files, style) == {"net.py": True, "train.py": True}


def test_it_is_rewritten_in_a_single_file(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(NET + "\n" + LOOP)
    done = rewrite(path)
    assert done.changed
    assert not done.findings


@pytest.mark.parametrize(
    "other",
    [
        "import pytorch_lightning as pl\nfrom net import Net\n\npl.Trainer().fit(Net())\n",
        "import hydra\nfrom lightning import Trainer\n\n\n"
        "def run(cfg):\n    trainer: Trainer = hydra.utils.instantiate(cfg.trainer)\n",
    ],
)
def test_it_stays_where_a_trainer_may_run_it(tmp_path: Path, other: str) -> None:
    files = {"net.py": NET, "train.py": f"import torch\nfrom net import Net\n\n{LOOP}"}
    assert not _changed(tmp_path, {**files, "fit.py": other})["net.py"]


def test_its_own_loops_are_the_frameworks(tmp_path: Path) -> None:
    assert not _changed(tmp_path, {"net.py": NET + MANUAL})["net.py"]
