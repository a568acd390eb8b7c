"""Saves that an exception runs: it may happen in one replica alone, which keeps its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.results import FileRewrite
from migrate.rewrite.rules.saving.saving import ON_ALL_RANKS

TRAIN = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from dumping import dump


def main(args, loader):
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    model = DDP(torch.nn.Linear(4, 1).to("cuda"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, batch in enumerate(loader):
        try:
            loss = model(batch.to("cuda")).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        except EXCEPTION:
            SAVE
            raise
"""
DUMPING = """\
import torch


def moved(x):
    return x.cuda()


def dump(step, data, error):
    torch.save({"error": str(error)}, f"bad_{step}.pt")
"""


def rewritten(folder: Path, save: str, error: str, style: str = "native") -> dict[str, FileRewrite]:
    (folder / "train.py").write_text(TRAIN.replace("SAVE", save).replace("EXCEPTION", error))
    (folder / "dumping.py").write_text(DUMPING)
    options = RewriteOptions(style="portable" if style == "portable" else "native")
    done = rewrite_folder(folder, options=options, processes=1)
    return {file.name.name: file for file in done.files}


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize("error", ["Exception as error", "RuntimeError as error"])
def test_it_stays_the_replicas_own(tmp_path: Path, error: str, style: str) -> None:
    save = 'torch.save({"batch": batch, "error": str(error)}, f"bad_{step}.pt")'
    text = rewritten(tmp_path, save, error, style)["train.py"].after.decode()
    assert 'torch.save({"batch": batch.cpu(), "error": str(error)}, f"bad_{step}.pt")' in text


@pytest.mark.parametrize("style", ["native", "portable"])
def test_a_function_of_another_file_that_saves_for_it(tmp_path: Path, style: str) -> None:
    files = rewritten(tmp_path, "dump(step, batch, error)", "Exception as error", style)
    assert "torch.save(" in files["dumping.py"].after.decode()
    notes = [note.message for file in files.values() for note in file.findings]
    assert not [message for message in notes if ON_ALL_RANKS in message]


def test_an_interrupt_reaches_all(tmp_path: Path) -> None:
    save = "torch.save(model.state_dict(), args.path)"
    text = rewritten(tmp_path, save, "KeyboardInterrupt")["train.py"].after.decode()
    assert "xm.save(model.state_dict(), args.path, global_master=True)" in text


@pytest.mark.parametrize(
    "text",
    [
        "def dump(step, data: dict, error):",
        'def dump(step, data, error):\n    print(data["x"].shape)',
    ],
)
def test_a_dictionary_is_not_moved_as_a_tensor(tmp_path: Path, text: str) -> None:
    """A dict has no method `cpu`: the save stays as it is."""
    dumping = DUMPING.replace("def dump(step, data, error):", text)
    dumping = dumping.replace('{"error": str(error)}', "data")
    (tmp_path / "train.py").write_text(
        TRAIN.replace("SAVE", "dump(step, batch, error)")
        .replace("EXCEPTION", "Exception as error")
        .replace("model(batch.to", 'model(batch["x"].to')
    )
    (tmp_path / "dumping.py").write_text(dumping)
    done = rewrite_folder(tmp_path, processes=1)
    (file,) = (file for file in done.files if file.name.name == "dumping.py")
    assert 'torch.save(data, f"bad_{step}.pt")' in file.after.decode()
