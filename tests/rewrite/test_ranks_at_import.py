"""A rank that an imported file asks for when it is read: replicas read the whole script once it is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import Options, Style
from migrate.rewrite.results import FileRewrite

TRAIN = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from lib.setting import describe


def main():
    dist.init_process_group("nccl")
    net = torch.nn.Linear(4, 2).cuda()
    model = DDP(net)
    print(describe(model))


if __name__ == "__main__":
    main()
"""
SETTING = """\
from lib.ranks import rank


def describe(model):
    return f"{rank}: {model}"
"""
AT_IMPORT = {
    "item": 'import os\n\nrank = int(os.environ["RANK"])\n',
    "default": 'import os\n\nrank = int(os.environ.get("LOCAL_RANK", 0))\n',
    "getenv": 'from os import getenv\n\nrank = int(getenv("RANK", "0"))\n',
    "choice": 'import os\n\nrank = int(os.environ["RANK"]) if "RANK" in os.environ else 0\n',
    "function": 'import os\n\n\ndef ask():\n    return int(os.environ["RANK"])\n\n\nrank = ask()\n',
    "class": 'import os\n\n\nclass rank:\n    index = int(os.environ["RANK"])\n',
    "try": 'import os\n\ntry:\n    rank = int(os.environ["RANK"])\nexcept KeyError:\n    rank = 0\n',
}
LATER = {
    "function": 'import os\n\n\ndef rank():\n    return int(os.environ["RANK"])\n',
    "guard": 'import os\n\nrank = 0\nif __name__ == "__main__":\n    print(os.environ["RANK"])\n',
    "other": 'import os\n\nrank = os.environ.get("HOME")\n',
}


def rewritten(folder: Path, ranks: str, style: Style = "native") -> str:
    for name, text in {
        "train.py": TRAIN,
        "lib/__init__.py": "",
        "lib/setting.py": SETTING,
        "lib/ranks.py": ranks,
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return of_script(folder, Options(style=style)).after.decode()


def of_script(folder: Path, options: Options) -> FileRewrite:
    done = rewrite_folder(folder, options=options, processes=1)
    return next(file for file in done.files if file.name == Path("train.py"))


@pytest.mark.parametrize("ranks", AT_IMPORT.values(), ids=AT_IMPORT)
def test_the_replicas_run_the_file(tmp_path: Path, ranks: str) -> None:
    text = rewritten(tmp_path, ranks)
    assert "runpy.run_path(__file__" in text
    assert text.index("torch_xla.launch") < text.index("from lib.setting")
    assert "shims.launch_script(__file__)" in rewritten(tmp_path, ranks, "portable")


@pytest.mark.parametrize("ranks", LATER.values(), ids=LATER)
def test_a_rank_asked_for_later_changes_nothing(tmp_path: Path, ranks: str) -> None:
    text = rewritten(tmp_path, ranks)
    assert "runpy" not in text
    assert text.endswith("torch_xla.launch(_mp_fn)\n")


COUNTING = {
    "enumerate": "    for at, rows in enumerate(loader):\n        yield at, rows\n",
    "range": "    rows = iter(loader)\n    for at in range(9):\n        yield at, next(rows)\n",
    "counted": "    at = 0\n    for rows in loader:\n        yield at, rows\n        at += 1\n",
}
COUNTED = """\
import torch

from lib.monitor import watched


def train(model, loader, optimizer, args):
    model.cuda()
    args.device = torch.device("cuda")
    for current, sample in watched(loader):
        images, labels = sample
        images = images.to(args.device)
        labels = labels.to(args.device)
        progress = current / 100
        loss = (model(images) - labels).pow(2).mean() * progress
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if current < 3:
            print(current)
"""


@pytest.mark.parametrize("body", COUNTING.values(), ids=COUNTING)
def test_the_number_that_a_generator_counts_stays_on_the_host(tmp_path: Path, body: str) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").write_text("")
    (tmp_path / "lib" / "monitor.py").write_text(f"def watched(loader):\n{body}")
    (tmp_path / "train.py").write_text(COUNTED)
    result = of_script(tmp_path, Options())
    text = result.after.decode()
    assert "current.to(" not in text
    assert "with torch_xla.step():" in text
    assert not [note for note in result.findings if "current" in note.message]
