"""Seeds of other files that would touch XLA in the process that launches the replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.file import rewrite_file
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.results import FolderRewrite
from migrate.rewrite.rules.random.seeds import AT_IMPORT, TOO_EARLY

SEEDS = """\
import random

import torch


def set_seed(seed):
    random.seed(seed)
    _seed_torch(seed)


def _seed_torch(seed):
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)


def on_the_host(seed):
    random.seed(seed)


def worker(rank):
    set_seed(rank)
    print(torch.ones(3).cuda())
"""
BEFORE = """\
import torch.multiprocessing as mp

from seeds import on_the_host, set_seed, worker


def start():
    mp.spawn(worker, nprocs=2)


if __name__ == "__main__":
    on_the_host(0)
    set_seed(0)
    start()
"""
ELSEWHERE = """\
import torch.multiprocessing as mp

import seeds


def main():
    seeds.on_the_host(0)
    mp.spawn(seeds.worker, nprocs=2)
    seeds.set_seed(1)


def alone():
    seeds.worker(0)
    mp.spawn(seeds.worker, nprocs=2)


if __name__ == "__main__":
    main()
"""


def project(folder: Path, script: str) -> Path:
    (folder / "requirements.txt").write_text("torch\n")
    (folder / "seeds.py").write_text(SEEDS)
    (folder / "main.py").write_text(script)
    return folder


def texts(done: FolderRewrite) -> dict[str, str]:
    return {file.name.name: file.after.decode() for file in done.files}


def test_a_folder_keeps_xla_out_of_what_runs_before_the_launch(tmp_path: Path) -> None:
    done = rewrite_folder(project(tmp_path, BEFORE), processes=1)
    assert "torch_xla.manual_seed" not in texts(done)["seeds.py"]
    ((name, note),) = [one for one in done.left_to_do if one[1].rule == "rng"]
    assert (name.name, note.line) == ("seeds.py", 13)
    assert note.message == TOO_EARLY


def test_a_folder_seeds_xla_where_only_the_worker_seeds(tmp_path: Path) -> None:
    done = rewrite_folder(project(tmp_path, ELSEWHERE), processes=1)
    assert "torch_xla.manual_seed(seed)" in texts(done)["seeds.py"]
    assert "rng" not in done.findings_by_rule


@pytest.mark.parametrize(("script", "lines"), [(BEFORE, [12]), (ELSEWHERE, [])])
def test_a_single_script_says_which_call_seeds_too_early(
    tmp_path: Path, script: str, lines: list[int]
) -> None:
    done = rewrite_file(project(tmp_path, script) / "main.py")
    assert [note.line for note in done.findings if note.rule == "rng"] == lines


LED = """
import torch
from {package} import {name}
from net import Net


class Lite({name}):
    def run(self):
        model = Net().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            loss = model(torch.randn(2, 4).cuda()).sum()
            optimizer.zero_grad()
            self.backward(loss)
            optimizer.step()


if __name__ == "__main__":
    Lite(strategy="ddp").run()
"""
NET = """
import torch

{seed}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x + torch.rand_like(x))
"""


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    ("package", "name"),
    [("pytorch_lightning.lite", "LightningLite"), ("lightning_lite", "LightningLite")],
)
@pytest.mark.parametrize(
    "seed",
    [
        "torch.manual_seed(0)",
        "torch.cuda.manual_seed_all(0)",
        "def seed():\n    torch.manual_seed(0)\n\n\nseed()",
    ],
)
def test_a_seed_at_import_where_a_library_starts_the_replicas(
    tmp_path: Path, seed: str, package: str, name: str, style: Style
) -> None:
    """XLA must not be touched at import: the library's launch would fail. Another library may start none."""
    (tmp_path / "train.py").write_text(LED.format(package=package, name=name))
    (tmp_path / "net.py").write_text(NET.format(seed=seed))
    done = rewrite_folder(tmp_path, options=RewriteOptions(style=style), processes=1)
    net = next(file for file in done.files if file.name.name == "net.py")
    text, notes = net.after.decode(), [note.message for note in net.findings]
    if package.startswith("pytorch_lightning"):
        assert "torch_xla.manual_seed" not in text
        assert "shims" not in text
        assert any(AT_IMPORT in note for note in notes)
    else:
        assert not any(AT_IMPORT in note for note in notes)
