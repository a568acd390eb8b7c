"""The number of processes of a spawning script, where a file that it imports reads it too."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.results import Note

TRAIN = """\
import argparse

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from data import batch_size


def worker(rank, args):
    dist.init_process_group("nccl", init_method="tcp://localhost:12345", rank=rank, world_size=args.gpus)
    print(batch_size(args))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()
    # count
    mp.spawn(worker, args=(args,), nprocs=args.gpus)
"""
READ = "def batch_size(options):\n    return options.batch // options.gpus\n"


def notes(tmp_path: Path, train: str, data: str) -> list[Note]:
    (tmp_path / "train.py").write_text(train)
    (tmp_path / "data.py").write_text(data)
    return [note for _, note in rewrite_folder(tmp_path, processes=1).left_to_do]


def places(found: list[Note]) -> list[str]:
    return [line.path.name for note in found for line in note.related if line.path is not None]


def test_a_share_of_the_batch_in_another_file_is_named(tmp_path: Path) -> None:
    found = [note for note in notes(tmp_path, TRAIN, READ) if note.rule == "mp-spawn"]
    assert [note.line for note in found] == [21]
    assert places(found) == ["data.py"]


@pytest.mark.parametrize(
    ("train", "data"),
    [
        (TRAIN.replace("# count", "args.gpus = torch.cuda.device_count()"), READ),
        (TRAIN, READ.replace("options.gpus", "options.parts.gpus")),
        (TRAIN, READ.replace(" // options.gpus", "")),
    ],
    ids=["the worker asks for it", "a field of another object", "nothing reads it"],
)
def test_no_other_reader_counts(tmp_path: Path, train: str, data: str) -> None:
    assert not [note for note in notes(tmp_path, train, data) if note.rule == "mp-spawn"]


@pytest.mark.parametrize(("data", "unread"), [(READ, []), ("batch_size = print\n", ["--gpus"])])
def test_an_option_that_an_imported_file_reads_has_an_effect(
    tmp_path: Path, data: str, unread: list[str]
) -> None:
    found = notes(tmp_path, TRAIN.replace("print(batch_size(args))", "batch_size(args)"), data)
    assert [note.subject for note in found if note.subject == "--gpus"] == unread
