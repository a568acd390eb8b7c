"""A parameter of a module that every call gives a number of Python is no tensor."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.check.project import check_paths
from migrate.syntax.source import parse

PARTS = """
    import torch
    import torch.nn.functional as F
    from torch import nn


    class Head(nn.Module):
        def forward(self, x, patch_h, patch_w):
            return F.interpolate(x, (int(patch_h * 14), int(patch_w * 14)), mode="bilinear")


    class Critic(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x, turn, step):
            if turn == 0 and step > 3:
                return -self.layer(x).mean()
            return self.layer(x).mean()


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 3, 14, 14), Head()

        def forward(self, x):
            {sizes}
            return self.head{forward}(self.conv(x), patch_h, patch_w)
"""
TRAIN = """
    def main():
        model, critic = Net().to("xla"), Critic().to("xla")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            x = torch.randn(1, 3, 28, 28).to("xla")
            if step % 2:
                loss = critic(model(x), {turn}, step)
            else:
                loss = critic(model(x), 0, step=step)
            loss.backward()
            optimizer.step()


    if __name__ == "__main__":
        main()
"""
SIZES = [
    "h, w = x.shape[-2:]; patch_h, patch_w = h // 14, w // 14",
    "_, _, patch_h, patch_w = x.size()",
    "patch_h = patch_w = x.size(2) // 14",
    "patch_h, patch_w = x.shape[2], len(x)",
]


def codes(sizes: str, forward: str = "", turn: str = "1") -> set[str]:
    text = textwrap.dedent(PARTS).format(sizes=sizes, forward=forward)
    text += "\n\n" + textwrap.dedent(TRAIN).format(turn=turn)
    findings = check_source(parse(text.encode(), Path("s.py")), Config())
    return {finding.code for finding in findings} & {"XLA110", "XLA202"}


@pytest.mark.parametrize("forward", ["", ".forward"])
@pytest.mark.parametrize("sizes", SIZES)
def test_sizes_and_literals_are_no_tensors(sizes: str, forward: str) -> None:
    assert not codes(sizes, forward)


def test_a_tensor_of_one_call_is_reported() -> None:
    assert codes(SIZES[0], turn="x.mean()") == {"XLA110"}
    assert codes("patch_h, patch_w = x.sum(), x.mean()") == {"XLA202"}


@pytest.mark.parametrize(("turn", "expected"), [("1", set()), ("x.mean()", {"XLA110"})])
def test_calls_of_another_file_count(tmp_path: Path, turn: str, expected: set[str]) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    parts = textwrap.dedent(PARTS).format(sizes=SIZES[0], forward="")
    (folder / "parts.py").write_text(parts)
    train = "import torch\nfrom parts import Critic, Net\n\n\n" + textwrap.dedent(TRAIN)
    (folder / "train.py").write_text(train.format(turn=turn))
    found = {finding.code for finding in check_paths([folder], Config()).findings}
    assert found & {"XLA110", "XLA202"} == expected


TAKEN = """
    import torch


    def drawn(x):
        count = x.shape[0]
        return torch.randperm(count, device=x.device)[:1], FACTOR


    def added(x, rows, rest, factor):
        return torch.index_add(x, 0, rows, rest, alpha=factor)


    def train(model, loader, optimizer):
        for x in loader:
            xs = [x.cuda(), x.cuda()]
            pairs = [drawn(x) for x in xs]
            factors = [pair[1] for pair in pairs]
            for part, factor in zip(xs, factors):
                loss = added(model(part), pairs[0][0], part, factor).sum()
                loss.backward()
            optimizer.step()
"""


@pytest.mark.parametrize(("factor", "count"), [("count / 2", 0), ("x.sum() / count", 1)])
def test_a_number_that_a_function_returns_beside_a_tensor(factor: str, count: int) -> None:
    text = textwrap.dedent(TAKEN).replace("FACTOR", factor)
    found = check_source(parse(text.encode(), Path("train.py")), Config())
    assert [finding.code for finding in found].count("XLA202") == count


RETURNED = """
    from torch import nn


    class Patches(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 8)

        def forward(self, x):
            rows, count = x.shape[0], x.shape[1]
            b, n, d = x.shape
            return self.linear(x), COUNT
"""
READS = """
    import torch
    from patches import Patches
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = Patches()

        def forward(self, x):
            out, count = self.patches(x)
            return torch.reshape(out, (-1, count, 8))


    def train(loader):
        net = Net().cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for x in loader:
            loss = net(x.cuda()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


@pytest.mark.parametrize(
    ("count", "reported"),
    [
        ("count", False),
        ("n * d", False),
        ("x.size(1) + 1", False),
        ("len(x)", False),
        ("x.max()", True),
        ("int(x.max())", True),
    ],
)
def test_a_size_that_a_layer_of_another_file_returns(
    tmp_path: Path, count: str, reported: bool
) -> None:
    (tmp_path / "patches.py").write_text(textwrap.dedent(RETURNED.replace("COUNT", count)))
    (tmp_path / "net.py").write_text(textwrap.dedent(READS))
    found = [f for f in check_paths([tmp_path], Config()).findings if f.code == "XLA107"]
    assert bool(found) is reported


STATES = """
    import torch
    from einops import rearrange


    class Scaled(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    state = self.state[p]
                    if len(state) == 0:
                        state["sq"] = torch.zeros_like(p)
                    if torch.min(state["sq"]) > 0:
                        p.grad.div_(state["sq"].sqrt())


    def train(model, loader):
        model.cuda()
        optimizer = Scaled(model.parameters())
        for x in loader:
            out = rearrange(model(x.cuda()), "b (h w) -> b h w", h=2).cpu()
            loss = out.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


def test_a_state_of_an_optimizer_and_what_einops_returns_are_tensors(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(STATES))
    found = {f.code for f in check_paths([tmp_path], Config()).findings}
    assert {"XLA110", "XLA203"} <= found
