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
