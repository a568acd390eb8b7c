"""XLA872: shares of data that each replica takes by hand, and loops over them in which all replicas meet."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.project import check_paths

SAMPLERS = """
import torch
from torch.utils.data import Sampler


class Chosen(Sampler):
    def __init__(self, indices):
        self.indices = indices

    def __iter__(self):
        return (self.indices[i] for i in torch.randperm(len(self.indices)))


class Padded(Sampler):
    def __init__(self, data, rank, replicas):
        self.data, self.rank, self.replicas = data, rank, replicas
        self.total_size = -(-len(data) // replicas) * replicas

    def __iter__(self):
        indices = list(range(len(self.data)))
        indices += indices[: self.total_size - len(indices)]
        return iter(indices[self.rank : self.total_size : self.replicas])


class Unpadded(Sampler):
    def __init__(self, data, rank, replicas):
        self.data, self.rank, self.replicas = data, rank, replicas

    def __iter__(self):
        indices = list(range(len(self.data)))
        return iter(indices[self.rank :: self.replicas])
"""
ENGINE = """
import torch
import torch.distributed as dist


def reduced(x):
    x = x.clone()
    dist.all_reduce(x)
    return x


def logged(batches):
    for batch in batches:
        yield batch


def validate(loader, model):
    for number, images in enumerate(logged(loader)):
        accuracy = model(images.cuda()).mean()
        accuracy = reduced(accuracy)


def count(loader, model):
    total = torch.zeros(1, device="cuda")
    for images in loader:
        total += model(images.cuda()).sum()
    dist.all_reduce(total)


def train(loader, model, optimizer):
    for images in loader:
        optimizer.zero_grad()
        model(images.cuda()).mean().backward()
        optimizer.step()
"""
MAIN = """
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Subset, SubsetRandomSampler

from engine import count, train, validate
from samplers import Chosen, Padded, Unpadded


def build(data, other):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    {}


def main(data, other):
    dist.init_process_group("nccl")
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 3).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loaders, loader = build(data, other)
    {}


if __name__ == "__main__":
    main()
"""


def found(tmp_path: Path, built: str, used: str = "validate(loader, model)") -> list[str]:
    for name, text in (("samplers", SAMPLERS), ("engine", ENGINE)):
        (tmp_path / f"{name}.py").write_text(text)
    main = tmp_path / "main.py"
    main.write_text(MAIN.format(textwrap.indent(built, "    ").strip(), used))
    hazards = check_paths([tmp_path], Config()).findings
    lines = {path: path.read_text().splitlines() for path in tmp_path.glob("*.py")}
    return [
        f"{hazard.severity.value}: {lines[hazard.path][hazard.line - 1].strip()}: {hazard.message}"
        for hazard in hazards
        if hazard.code == "XLA872"
    ]


CHOSEN = "return None, DataLoader(data, 8, sampler={})"
SHARES = [
    "SubsetRandomSampler(np.arange(rank, len(data), world_size))",
    "Chosen(range(rank, len(data), world_size))",
    "Chosen([i for i in range(len(data)) if i % world_size == rank])",
    "Chosen(np.array_split(np.arange(len(data)), world_size)[rank])",
    "Chosen(np.random.permutation(len(data))[rank::world_size])",
    "Unpadded(data, rank, world_size)",
]


@pytest.mark.parametrize("sampler", SHARES)
def test_a_share_without_padding_is_reported_where_a_turn_has_a_collective(
    tmp_path: Path, sampler: str
) -> None:
    (hit,) = found(tmp_path, CHOSEN.format(sampler))
    assert hit.startswith("error: ")
    assert "meet in `reduced` in every turn of the loop of engine.py:18" in hit


@pytest.mark.parametrize("sampler", SHARES)
def test_it_is_not_reported_where_the_collective_comes_after_the_loop(
    tmp_path: Path, sampler: str
) -> None:
    assert found(tmp_path, CHOSEN.format(sampler), "count(loader, model)") == []


@pytest.mark.parametrize(
    "built",
    [
        CHOSEN.format("Padded(data, rank, world_size)"),
        CHOSEN.format("torch.utils.data.DistributedSampler(data, world_size, rank)"),
        CHOSEN.format("SubsetRandomSampler(np.arange(len(data)))"),
        CHOSEN.format("Chosen(range(rank, 50000, world_size))"),
        "n = len(data) // world_size * world_size\n"
        "return None, DataLoader(data, 8, sampler=Chosen(range(rank, n, world_size)))",
        "assert len(data) % world_size == 0\n"
        "return None, DataLoader(data, 8, sampler=Chosen(range(rank, len(data), world_size)))",
        "n = len(data) // world_size\n"
        "return None, DataLoader(Subset(data, range(rank * n, (rank + 1) * n)), 8)",
    ],
)
def test_equal_shares_are_not_reported(tmp_path: Path, built: str) -> None:
    assert found(tmp_path, built) == []


def test_the_share_is_the_one_that_the_loader_gets(tmp_path: Path) -> None:
    built = """\
indices = np.arange(rank, len(data), world_size)
train_sampler = Chosen(indices)
indices = np.arange(len(other))
sampler = Chosen(indices)
return DataLoader(data, 8, sampler=train_sampler), DataLoader(other, 8, sampler=sampler)"""
    assert found(tmp_path, built) == []
    (hit,) = found(tmp_path, built, "train(loaders, model, optimizer)")
    assert "indices = np.arange(rank, len(data), world_size)" in hit
    assert "the average of the gradients" in hit


def test_with_drop_last_only_the_number_of_batches_may_differ(tmp_path: Path) -> None:
    built = "return None, DataLoader(Subset(data, range(rank, len(data), world_size)), 8, drop_last=True)"
    (hit,) = found(tmp_path, built)
    assert hit.startswith("warning: ")
    assert "one batch more" in hit


def test_a_rounded_up_size_leaves_the_last_replica_less(tmp_path: Path) -> None:
    built = """\
import math
n = math.ceil(len(data) / world_size)
return None, DataLoader(Subset(data, range(rank * n, min((rank + 1) * n, len(data)))), 8)"""
    (hit,) = found(tmp_path, built)
    assert "range(rank * n" in hit


def test_replicas_in_a_join_context_may_end_apart(tmp_path: Path) -> None:
    script = tmp_path / "one.py"
    script.write_text(
        textwrap.dedent(
            """
            import torch
            import torch.distributed as dist
            from torch.distributed.algorithms.join import Join


            def run(model, files, rank, world_size):
                with Join([model]):
                    for file in files[rank::world_size]:
                        dist.all_reduce(torch.load(file).cuda())
                for file in files[rank::world_size]:
                    dist.all_reduce(torch.load(file).cuda())
            """
        )
    )
    hazards = check_paths([script], Config()).findings
    assert [one.line for one in hazards if one.code == "XLA872"] == [11]


@pytest.mark.parametrize(
    ("bound", "test", "is_reported"),
    [
        (
            "len(files) // world_size - 1",
            "dist.is_initialized() and i < last and (i + 1) % 20 == 0",
            False,
        ),
        ("len(files) // world_size", "dist.is_initialized() and i < last", False),
        ("len(files) // world_size", "dist.is_initialized() and i <= last", True),
        ("len(files) // 2", "dist.is_initialized() and i < last", True),
        ("len(files) // world_size", "dist.is_initialized() or i < last", True),
    ],
)
def test_a_meeting_in_turns_that_all_replicas_reach(
    tmp_path: Path, bound: str, test: str, is_reported: bool
) -> None:
    script = tmp_path / "evaluate.py"
    script.write_text(
        "import torch.distributed as dist\n\n\n"
        "def run(show, files, rank, world_size):\n"
        f"    last = {bound}\n"
        "    files = files[rank::world_size]\n"
        "    for i, file in enumerate(files):\n"
        "        show(file)\n"
        f"        if {test}:\n"
        "            dist.barrier()\n"
    )
    codes = {hazard.code for hazard in check_paths([script], Config()).findings}
    assert ("XLA872" in codes) is is_reported
