"""XLA307: numbers computed from the index of the replica that reach a graph through files and objects."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.check.project import check_paths
from migrate.syntax.source import parse

FILES = {
    "cluster.py": """
        import torch.distributed as dist


        class Cluster:
            def __init__(self):
                self.me = dist.get_rank()
                self.row = dist.get_rank() * 4
                self.count = dist.get_world_size()


        def offset(n):
            return dist.get_rank() * n


        def place():
            return dist.get_rank()


        def half(n):
            return n // 2
    """,
    "losses.py": """
        import torch
        import torch.nn.functional as F


        class Contrast(torch.nn.Module):
            def __init__(self, which=0, count=1):
                super().__init__()
                self.which = which
                self.count = count

            def forward(self, a, b):
                labels = torch.arange(a.shape[0], device=a.device)
                labels = labels + a.shape[0] * self.which  # here
                return F.cross_entropy(a @ b.T, labels * self.count)
    """,
    "unused.py": """
        import torch


        class Loss(torch.nn.Module):
            def __init__(self, rank=0, world_size=1):
                super().__init__()
                self.rank = rank
                self.world_size = world_size

            def forward(self, a):
                offset = self.rank * a.shape[0]
                return torch.arange(a.shape[0], device=a.device) + offset  # here


        class Adapter(torch.nn.Module):
            def __init__(self, rank=4, alpha=1.0):
                super().__init__()
                self.rank = rank
                self.alpha = alpha

            def forward(self, a):
                return a * (self.alpha / self.rank)
    """,
}
TRAINING = """
import cluster
import torch
import torch.distributed as dist
from cluster import Cluster, half, offset, place
from losses import Contrast


def main():
    dist.init_process_group("nccl")
    here = Cluster()
    loss_of = Contrast(which=here.me, count=here.count)
    x = torch.randn(4, 8, device="cuda")
    LINE
    loss_of(x, y).backward()


main()
"""


def reported(folder: Path, line: str) -> list[str]:
    files = {**FILES, "train.py": TRAINING.replace("LINE", line)}
    for name, text in files.items():
        (folder / name).write_text(textwrap.dedent(text))
    found = check_paths([folder], Config(select=("XLA307",))).findings
    return [
        (folder / one.path).read_text().splitlines()[one.line - 1].strip()
        for one in sorted(found, key=lambda one: (one.path, one.line))
    ]


@pytest.mark.parametrize(
    "line",
    [
        "y = x + offset(2)",
        "y = x * here.row",
        "y = x - cluster.place() * 2",
        "y = torch.cat([x, x])[here.row : here.row + 4]",
        "y = x * torch.full((4, 8), place(), device='cuda')",
        "y = x * torch.arange(here.row, here.row + 8, device=x.device)",
        "x += 3 * place(); y = x",
        "y = x.mul(int(here.row))",
        "y = torch.where(x > 0, x, here.me)",
        "y = x * (x == place())",
    ],
)
def test_a_number_of_another_file_is_followed(tmp_path: Path, line: str) -> None:
    elsewhere = [
        "labels = labels + a.shape[0] * self.which  # here",
        "return torch.arange(a.shape[0], device=a.device) + offset  # here",
    ]
    assert reported(tmp_path, line) == [elsewhere[0], line, elsewhere[1]]


@pytest.mark.parametrize(
    "line",
    [
        "y = x + half(2)",
        "y = x * here.count",
        "y = x.to(here.me)",
        "y = x * torch.full((4, 8), place()).cuda()",
        "y = x * torch.tensor([offset(2)], device=x.device)",
        "y = x.cuda(place())",
    ],
)
def test_what_is_the_same_on_all_or_an_input_is_not_reported(tmp_path: Path, line: str) -> None:
    assert line not in reported(tmp_path, line)


def test_a_slice_by_the_index_is_said_in_its_own_words() -> None:
    text = """
import torch
import torch.distributed as dist


def own_part(n):
    x, start = torch.zeros(8, device="cuda"), dist.get_rank() * n
    return x[start : start + n], x[start]
"""
    found = check_source(parse(text.encode(), Path("a.py")), Config(select=("XLA307",)))
    slice_of, index = (hit.message for hit in found)
    assert slice_of.endswith("made on the host: x[torch.arange(start, start + n).to(device)]")
    assert index.endswith("torch.tensor([number]).to(device), made on the host")
