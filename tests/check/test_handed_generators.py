"""XLA111 and XLA116 where a generator comes to `multinomial` as an argument."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.project import check_paths

HELPER = """
import torch


def draw(logits, rng=None, count=1):
    logits = logits / 2
    return torch.multinomial(logits.softmax(-1), count, replacement=True, generator=rng)
"""
SAMPLER = """
import torch
from torch import nn
from helper import draw


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.rng = MADE

    @torch.no_grad()
    def sample(self, x, seed=None):
        if seed is None:
            rng = None
        else:
            self.rng.manual_seed(seed)
            rng = self.rng
        found = []
        for _ in range(16):
            x = self.layer(x)
            index = DRAW
            x = x + index
        return x


def main():
    net = Net().cuda()
    return net.sample(torch.rand(2, 8).cuda(), seed=1)
"""
MADE = "torch.Generator(device='cuda')"
DRAW = "draw(x, rng=rng)"


def found(folder: Path, made: str = MADE, draw: str = DRAW) -> list[tuple[str, str]]:
    (folder / "helper.py").write_text(HELPER)
    (folder / "net.py").write_text(SAMPLER.replace("MADE", made).replace("DRAW", draw))
    config = Config(select=("XLA111", "XLA116"))
    return [(one.path.name, one.code) for one in check_paths([folder], config).findings]


@pytest.mark.parametrize("draw", [DRAW, "draw(x, rng)", "draw(x, self.rng if seed else None)"])
def test_a_generator_that_a_caller_passes_cuts_the_graph(tmp_path: Path, draw: str) -> None:
    assert found(tmp_path, draw=draw) == [("helper.py", "XLA111")]


def test_a_generator_in_the_loop_itself_cuts_the_graph(tmp_path: Path) -> None:
    draw = "torch.multinomial(x.softmax(-1), 1, generator=rng)"
    assert found(tmp_path, draw=draw) == [("net.py", "XLA111")]


@pytest.mark.parametrize(
    ("made", "draw"), [(MADE, "draw(x)"), (MADE, "draw(x, None)"), ("None", DRAW)]
)
def test_a_draw_without_a_generator_stays_on_the_device(
    tmp_path: Path, made: str, draw: str
) -> None:
    assert found(tmp_path, made, draw) == [("net.py", "XLA116")]
