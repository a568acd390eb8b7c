"""Ranks in the environment that another file of the project sets in each replica."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.rewrite.check_findings import check_and_mend

UTILS = """import os
import torch.distributed as dist


def setup():
    dist.init_process_group("xla", init_method="xla://")
    return int(os.environ["RANK"])
"""
SETS = '    os.environ["RANK"] = str(index)\n'
TRAIN = """import os
import torch_xla
from utils import setup


def _mp_fn(index):
{}    setup()


if __name__ == "__main__":
    torch_xla.launch(_mp_fn)
"""


@pytest.mark.parametrize(
    ("scripts", "reported"),
    [
        ({"train.py": SETS}, False),
        ({"train.py": ""}, True),
        ({"train.py": SETS, "evaluate.py": ""}, True),
    ],
    ids=["set", "not set", "not set by one of two"],
)
def test_a_rank_that_all_launching_scripts_set(
    tmp_path: Path, scripts: dict[str, str], reported: bool
) -> None:
    (tmp_path / "utils.py").write_text(UTILS)
    for name, statement in scripts.items():
        (tmp_path / name).write_text(TRAIN.format(statement))
    findings = check_and_mend([tmp_path], Config()).findings
    assert ("XLA710" in {finding.code for finding in findings}) is reported
