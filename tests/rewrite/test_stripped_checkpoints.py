"""Functions that load a checkpoint on the CPU, change it and save it: one replica may call them."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.rewrite.folder import rewrite_folder

UTILS = """
    import torch


    def strip(path):
        x = torch.load(path, map_location=torch.device("cpu"))
        x["optimizer"] = VALUE
        torch.save(x, path)


    def boxes(y, x):
        x[0] = y
        return x
"""
TRAIN = """
    import torch
    import torch.distributed as dist
    from utils import strip


    def main():
        dist.init_process_group("nccl")
        model = torch.nn.Linear(2, 2).cuda()
        if dist.get_rank() == 0:
            strip("a.pt")
"""


@pytest.mark.parametrize(
    ("value", "said"), [("None", False), ("x['ema']", False), ("model.state_dict()", True)]
)
def test_a_checkpoint_of_the_host(tmp_path: Path, value: str, said: bool) -> None:
    (tmp_path / "utils.py").write_text(dedent(UTILS).lstrip().replace("VALUE", value))
    (tmp_path / "train.py").write_text(dedent(TRAIN).lstrip())
    files = rewrite_folder(tmp_path, processes=1).files
    messages = [note.message for file in files for note in file.findings]
    assert any("must be called on all ranks" in message for message in messages) == said
