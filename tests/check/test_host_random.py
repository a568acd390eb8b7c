"""XLA113 and XLA112: random numbers of the host that decide what a step computes; and those that do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.reading.tree.source import parse
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import Options, Style
from migrate.rewrite.story import rewrite_source

TRAINING = """
import random as rnd
from random import choice

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

rng = np.random.default_rng(0)


def lucky(p):
    return rnd.random() < p


def corner(size):
    left = np.random.randint(size)
    return left, left + 8


def main(loader, net):
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    model = DDP(net.cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        LINE
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
"""
AT = TRAINING.lstrip().splitlines().index("        LINE") + 1


def reported(line: str, style: Style | None = None) -> list[str]:
    """Return the codes that the check, or the rewrite in `style`, reports at the line."""
    source = parse(TRAINING.lstrip().replace("LINE", line).encode(), Path("train.py"))
    if style is None:
        found = [(one.line, one.code) for one in check_source(source, Config())]
    else:
        done = rewrite_source(source, options=Options(style=style))
        found = [(note.line, note.rule) for note in done.findings]
    last = AT + line.count("\n")
    return sorted({code for at, code in found if AT <= at <= last and code in ("XLA112", "XLA113")})


@pytest.mark.parametrize("style", [None, "native", "portable"])
@pytest.mark.parametrize(
    "line",
    [
        "if rnd.random() < 0.5: x = x.flip(-1)",
        "if not np.random.rand() > 0.5: x = x.flip(-1)",
        "if torch.rand(1).item() < 0.5: x = x.flip(-1)",
        "if rng.random() < 0.5: x = x.flip(-1)",
        "if lucky(0.5): x = x.flip(-1)",
        "if torch.empty(1).uniform_(0, 1) < 0.5: x = x.flip(-1)",
        "x = x.flip(-1) if choice([True, False]) else x",
        "r = np.random.beta(1.0, 1.0); x = x.flip(0) if r < 0.3 else x",
        "for _ in range(rnd.randint(1, 4)): x = x + 1",
    ],
)
def test_a_branch_by_chance(line: str, style: Style | None) -> None:
    assert reported(line, style) == ["XLA113"]


@pytest.mark.parametrize("style", [None, "native", "portable"])
@pytest.mark.parametrize(
    "line",
    [
        "left, right = corner(24); x = x[:, left:right]",
        "x = x[:, : int(24 * np.random.uniform())]",
        "x = torch.roll(x, rnd.randrange(8))",
        "x = F.interpolate(x, scale_factor=choice([0.5, 1.0]))",
        "x = x ** rnd.uniform(1.0, 2.0)",
    ],
)
def test_a_position_or_a_size_by_chance(line: str, style: Style | None) -> None:
    assert reported(line, style) == ["XLA112"]


@pytest.mark.parametrize("style", [None, "native", "portable"])
@pytest.mark.parametrize(
    "line",
    [
        "x = x * np.random.beta(1.0, 1.0)",
        "x = torch.where(torch.rand((), device='cuda') < 0.5, x.flip(-1), x)",
        "if rnd.random() < 0.01: print('still here')",
        "x = x[torch.randperm(len(x), device='cuda')]",
        "x = x + torch.randn_like(x)",
        "if x.shape[0] > 4: x = x.flip(-1)",
    ],
)
def test_numbers_that_are_data_and_branches_that_compute_nothing(
    line: str, style: Style | None
) -> None:
    assert reported(line, style) == []


@pytest.mark.parametrize(
    ("line", "codes"),
    [
        ("x = x[:, : rnd.randint(1, 9)]", ["XLA112"]),
        ("x = x[:, rnd.randint(1, 9) :]", ["XLA112"]),
        ("k = torch.randint(1, 9, (1,)); x = x[:, :k]", ["XLA112"]),
        ("k = rnd.randint(1, 9); x = x[:, k : k + 8]", []),
        ("if rnd.random() < 0.5: x = x.flip(-1)", []),
    ],
)
def test_the_shape_of_a_batch_that_moves_later(line: str, codes: list[str]) -> None:
    moved = "x, y = x.cuda(), y.cuda()\n        LINE"
    script = TRAINING.lstrip().replace(moved, f"{line}\n        x, y = x.cuda(), y.cuda()")
    found = check_source(parse(script.encode(), Path("train.py")), Config())
    assert sorted({one.code for one in found if one.code in ("XLA112", "XLA113")}) == codes


def test_layers_left_out_at_random_in_another_file(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import random\n\nimport torch\n\n\nclass Net(torch.nn.Module):\n"
        "    def __init__(self, layers):\n        super().__init__()\n"
        "        self.layers = torch.nn.ModuleList(layers)\n\n"
        "    def forward(self, x):\n        for layer in self.layers:\n"
        "            if random.random() < 0.1:\n                continue\n"
        "            x = layer(x)\n        return x\n"
    )
    (tmp_path / "train.py").write_text(
        TRAINING.lstrip()
        .replace("        LINE\n", "")
        .replace("net.cuda()", "Net([]).cuda()")
        .replace("import torch\n", "import torch\nfrom net import Net\n", 1)
    )
    files = {file.name.name: file for file in rewrite_folder(tmp_path, processes=1).files}
    assert (13, "XLA113") in [(note.line, note.rule) for note in files["net.py"].findings]
