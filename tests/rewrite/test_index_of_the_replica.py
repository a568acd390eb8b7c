"""The index of the replica under a name that does not say so."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.reading.tree.source import parse
from migrate.rewrite.story import rewrite_source

SCRIPT = """
    import os

    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl")
    me = {index}
    model = torch.nn.Linear(3, 3).cuda()
    if me == 0:
        torch.save(model.state_dict(), "model.pt")
"""


@pytest.mark.parametrize("index", ['int(os.environ["RANK"])', "dist.get_rank()"])
def test_a_save_of_one_replica_is_of_all(index: str) -> None:
    """It stayed under the test before, where the other replicas wait for it, and nothing was said."""
    script = dedent(SCRIPT.format(index=index))
    done = rewrite_source(parse(script.encode(), Path("train.py"))).data.decode()
    assert "if me == 0:" not in done
    assert "xm.save(" in done
