"""The numbers that a loop counts beside a batch are not moved to the device."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

SCRIPT = """
    import itertools

    import torch
    from tqdm import tqdm


    @torch.no_grad()
    def sample(net, x, n, device):
        net.eval()
        for {loop}:
            x = net(x * t) + left
        return x


    net = torch.nn.Linear(4, 4).to("cuda")
    print(sample(net, torch.randn(2, 4, device="cuda"), 10, "cuda"))
"""


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    "loop",
    [
        "t, left in zip(torch.linspace(0, 1, n, device=device), reversed(range(n)))",
        "t, left in zip(torch.linspace(0, 1, n, device=device), itertools.count())",
        "t, left in tqdm(zip(torch.linspace(0, 1, n, device=device), range(n)), total=n)",
        "i, (t, left) in enumerate(zip(torch.rand(n, device=device), list(range(n))[::-1]))",
        "left, t in zip([3, 2, 1], torch.rand(3, device=device))",
    ],
)
def test_a_number_has_no_device(loop: str, style: Style) -> None:
    """`left.to("xla")` of an int was written, which raises."""
    source = parse(dedent(SCRIPT.format(loop=loop)).lstrip().encode(), Path("sample.py"))
    text = rewrite_source(source, options=RewriteOptions(style=style)).data.decode()
    assert "step():\n            x = net(x * t) + left\n" in text


@pytest.mark.parametrize("style", ["native", "portable"])
def test_a_batch_beside_a_number_is_moved(style: Style) -> None:
    script = """
        import torch


        @torch.no_grad()
        def evaluate(net, loader):
            net.to("cuda")
            for (x, y), turn in zip(loader, range(10)):
                out = net(x) * turn
                good = (out.argmax(1) == y).sum()
    """
    source = parse(dedent(script).lstrip().encode(), Path("sample.py"))
    text = rewrite_source(source, options=RewriteOptions(style=style)).data.decode()
    assert "x, y = x.to(" in text
    assert "turn.to(" not in text


TRAINING = """
    import argparse
    import random

    import numpy as np
    import torch

    LENGTHS = [32, 64, 128]
    BY_NAME = {{"short": 32, "long": 128}}
    SETTINGS = {{"lengths": [32, 64], "name": "a"}}


    class Config:
        lengths: tuple = (32, 64)


    def train(args, unknown, model, optimizer, device):
        config = Config()
        for {loop}:
            x = torch.randn(8, {size}, 16, device=device)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


    def main():
        parser = argparse.ArgumentParser()
        parser.add_argument("--lengths", type=int, nargs="+", default=[32, 64])
        args = parser.parse_args()
        model = torch.nn.Linear(16, 1).to("cuda")
        optimizer = torch.optim.Adam(model.parameters())
        train(args, load(), model, optimizer, torch.device("cuda"))


    if __name__ == "__main__":
        main()
"""


@pytest.mark.parametrize(
    ("loop", "size"),
    [
        ("length in LENGTHS", "2 * length"),
        ("length in sorted(LENGTHS)[::-1]", "2 * length"),
        ("length in LENGTHS * 10", "2 * length"),
        ("length in BY_NAME.values()", "2 * length"),
        ("name, length in BY_NAME.items()", "2 * length"),
        ("length in SETTINGS['lengths']", "2 * length"),
        ("length in config.lengths", "2 * length"),
        ("length in args.lengths", "2 * length"),
        ("length in [2**k for k in range(5, 8)]", "2 * length"),
        ("length in np.arange(32, 128, 32)", "2 * int(length)"),
        ("length in random.sample(LENGTHS, 2)", "2 * length"),
        ("i, length in enumerate(LENGTHS)", "2 * length"),
        ("length, turn in zip(LENGTHS, range(3))", "length * turn"),
        ("i, (length, turn) in enumerate(zip(LENGTHS, (1, 2, 3)))", "length * turn"),
        # The source does not show what is in it; a size is a number.
        ("length in unknown.lengths", "length"),
    ],
)
def test_a_loop_over_numbers_that_makes_its_batch_is_a_step(loop: str, size: str) -> None:
    """XLA214 asked whether the number is on the device."""
    text = dedent(TRAINING.format(loop=loop, size=size)).lstrip()
    result = rewrite_source(parse(text.encode(), Path("train.py")))
    assert "step" not in [finding.rule for finding in result.findings]
    assert "step():\n            x = torch.randn(" in result.data.decode()


@pytest.mark.parametrize(
    "loop",
    ["x in unknown.batches", "x in [unknown, unknown]", "x in unknown.values()"],
)
def test_a_loop_over_what_may_be_tensors_is_asked_about(loop: str) -> None:
    text = dedent(TRAINING.format(loop=loop, size="3").replace("x = torch", "y = torch")).lstrip()
    result = rewrite_source(parse(text.encode(), Path("train.py")))
    assert "step" in [finding.rule for finding in result.findings]
