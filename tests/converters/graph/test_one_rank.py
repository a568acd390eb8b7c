"""Collectives in a model that is recorded in a process group of one rank."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn

from converters.graph import port
from converters.graph.recording.one_rank import ONE_RANK


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Sums(torch.nn.Module):
    """Tensors of several ranks, added and gathered."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ x.T
        dist.all_reduce(y)
        gathered = [torch.empty_like(y)]
        dist.all_gather(gathered, y)
        return torch.cat(gathered) + torch.distributed.nn.all_reduce(y * 2)


@pytest.mark.usefixtures("one_rank")
def test_collectives_of_one_rank_change_nothing_and_are_noted() -> None:
    model, x = Sums(), torch.randn(3, 4)
    made = port(model, {"x": x})
    assert "all_reduce" not in made.modeling
    assert "x @ x.T" in made.modeling
    (note,) = (note for note in made.notes if note.startswith(ONE_RANK))
    first = Sums.forward.__code__.co_firstlineno
    assert f"all_reduce (test_one_rank.py:{first + 2})" in note
    assert f"all_gather_into_tensor (test_one_rank.py:{first + 4})" in note
