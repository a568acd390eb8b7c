"""Four ranks in groups of two, as rows and as columns; or one of them fails.

python groups.py [fail]
"""

import sys

import pytest
import torch

import shims
from shims.api_errors import UnsupportedError


def main(rank, fails):
    shims.init_distributed()
    if fails and rank == 1:
        raise ValueError("rank one gives up")
    rows = [shims.new_group([0, 1]), shims.new_group([2, 3])]
    columns = [shims.new_group([0, 2]), shims.new_group([1, 3])]
    row, column = rows[rank // 2], columns[rank % 2]
    device = shims.device()

    value = torch.tensor([float(rank)], device=device)
    shims.all_reduce(value, "mean", group=row)
    assert value.item() == (0.5 if rank < 2 else 2.5)
    outs = [torch.zeros(1, device=device) for _ in range(2)]
    shims.all_gather(outs, value, group=column)
    assert [out.item() for out in outs] == [0.5, 2.5]
    source = rank // 2 * 2 + 1
    value = torch.tensor([float(rank) if rank == source else float("nan")], device=device)
    shims.broadcast(value, source, group=row)
    assert value.item() == source
    if shims.backend().name == "xla":
        with pytest.raises(UnsupportedError, match="grid"):
            shims.new_group([0, 3])
    shims.barrier()
    if shims.is_main():
        sys.stdout.write("all groups are right\n")


if __name__ == "__main__":
    shims.launch(main, args=(len(sys.argv) > 1,), ranks=4)
