"""Arguments and options of calls that `--target torch_tpu` edits: kept, or reported."""

from __future__ import annotations

from pathlib import Path

from migrate.catalogue.target import TPU
from migrate.check.config import Config
from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.syntax.source import parse

OPTIONS = RewriteOptions(config=Config(target=TPU))


def run(script: str) -> Rewrite:
    return rewrite_source(parse(script.encode(), Path("script.py")), options=OPTIONS)


def reported(done: Rewrite, rule: str) -> list[str]:
    return [note.message for note in done.findings if note.rule == rule]


GROUP = """\
import os

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("nccl", rank=RANK, world_size=int(os.environ["WORLD_SIZE"]))
    torch.ones(1).cuda()


main()
"""


def test_a_rank_of_another_variable_is_set_for_torch_tpu() -> None:
    slurm = 'int(os.environ["SLURM_PROCID"])'
    done = run(GROUP.replace("RANK,", f"{slurm},"))
    text = done.data.decode()
    assert f'os.environ["RANK"] = str({slurm})' in text
    assert 'os.environ["WORLD_SIZE"] =' not in text
    assert any("LOCAL_RANK" in message for message in reported(done, "tpu-process-group"))


def test_a_rank_of_its_own_variable_is_not_set_again() -> None:
    text = run(GROUP.replace("RANK,", 'int(os.environ["RANK"]),')).data.decode()
    assert 'os.environ["RANK"] =' not in text
