"""What is called a rank and is none of a replica: of a matrix, or the number of a tensor's dimensions."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

LAYER = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Adapter(torch.nn.Module):
    def __init__(self, dim, rank={default}):
        super().__init__()
        self.rank, self.delta = rank, None
        self.base, self.down = torch.nn.Linear(dim, dim), torch.nn.Linear(dim, dim)

    def forward(self, x):
        out = self.base(x)
        {before}
        if {test}:
            self.delta = self.down(x)
            out = out + self.delta
        return out


def main():
    dist.init_process_group("nccl")
    model = DDP(Adapter(8).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        loss = model(torch.randn(4, 8).cuda()).square().mean()
        loss.backward()
        optimizer.step()


main()
"""


def _syncs(default: str, before: str, test: str) -> int:
    text = LAYER.format(default=default, before=before, test=test)
    done = rewrite_source(parse(text.encode(), Path("net.py")))
    return done.data.decode().count("torch_xla.sync()")


@pytest.mark.parametrize(
    "test", ["self.rank > 0", "self.rank == 1", "self.rank <= 2", "not self.rank"]
)
def test_the_rank_of_a_matrix_parts_no_replicas(test: str) -> None:
    assert _syncs("4", "pass", test) == 0


@pytest.mark.parametrize("value", ["x.dim()", "x.ndim", "torch.linalg.matrix_rank(x)"])
def test_the_rank_of_a_tensor_parts_none(value: str) -> None:
    assert _syncs("4", f"rank = {value}", "rank == 2") == 0


@pytest.mark.parametrize("default", ["0", "None"])
def test_the_index_of_a_replica_does(default: str) -> None:
    assert _syncs(default, "pass", "self.rank == 0") > 0
