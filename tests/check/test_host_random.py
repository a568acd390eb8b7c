"""XLA113 and XLA112: random numbers of the host that decide what a step computes; and those that do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

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
        done = rewrite_source(source, options=RewriteOptions(style=style))
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
        "if hash('a') % 2: x = x.flip(0)",
        "import os; x = x.flip(0) if os.getpid() % 2 else x",
        "import time; x = x.flip(0) if int(time.time()) % 2 else x",
        "x = rnd.choice([net.a, net.b])(x)",
        "layer = rnd.choice(net.layers); x = layer(x)",
        "x = net.layers[rnd.randrange(3)](x)",
        "x = getattr(net, choice(['a', 'b']))(x)",
        "for n in {'a', 'b'}: x = net.parts[n](x)",
        "names = list(set(net.parts.keys()))\n        for n in names: x = net.parts[n](x)",
        "for layer in rnd.sample(list(net.layers), 3): x = layer(x)",
        "layers = list(net.layers); rnd.shuffle(layers)\n        for layer in layers: x = layer(x)",
        "for n in np.random.permutation(['a', 'b']): x = net.parts[n](x)",
        "x = {n: net.parts[n](x) for n in rnd.sample(list(net.parts.keys()), 2)}['a']",
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
        "s = [32, 48][hash(str(y)) % 2]; x = F.interpolate(x, s)",
        "x = x[:, : hash((f'{y}', 1)) % 9]",
        "import scipy.stats; x = x[:, : int(scipy.stats.norm.rvs())]",
        "x = x[:, : int(net.rate.rvs(1)[0])]",
        "import uuid; n = uuid.uuid4().int % 7; x = x[:, :n]",
        "import os; x = x[:, : os.getpid() % 7]",
        "import time; x = x[:, : int(time.time()) % 3 + 1]",
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
        "if hash(3) % 2: x = x.flip(0)",
        "import time\n        if time.time() > 5: break",
        "for n in sorted(set(net.parts.keys())): x = net.parts[n](x)",
        "for n in {1, 2}: x = x + n",
        "for s in rnd.sample(buffer, 3): x = x + net(s)",
        "x = net.layers[0](x)",
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


FORWARDED = """
import random

import torch

WRAPPER

class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.extra = torch.nn.Linear(4, 4)

    def forward(self, x, use_extra=True):
        if use_extra:  # here
            x = x + self.extra(x)
        return x


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.head = torch.nn.Linear(4, 4), Head()

    def run_head(self, *args, **kwargs):
        return CALLED(*args, **kwargs)

    def forward(self, x):
        use = random.random() < 0.5
        return PASSED
"""
WRAPPER = """
def plainly(off):
    def wrapper(func):
        def new_func(*args, **kwargs):
            return func(*args, **kwargs)

        return new_func

    return wrapper
"""


@pytest.mark.parametrize("called", ["self.head", "plainly(True)(self.head)"])
@pytest.mark.parametrize(
    ("passed", "is_drawn"),
    [
        ("self.run_head(self.fc(x), use_extra=not use)", True),
        ("self.run_head(self.fc(x), use)", True),
        ("self.run_head(self.fc(x), use_extra=True) * use", False),
        ("self.run_head(self.fc(x))", False),
    ],
)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_draw_that_is_handed_on(
    tmp_path: Path, called: str, passed: str, is_drawn: bool, elsewhere: bool
) -> None:
    text = FORWARDED.replace("CALLED", called).replace("PASSED", passed).lstrip()
    imported = "from wrapping import plainly\n\n" if elsewhere else WRAPPER
    (tmp_path / "wrapping.py").write_text(WRAPPER.lstrip())
    (tmp_path / "net.py").write_text(text.replace("WRAPPER\n", imported))
    (tmp_path / "train.py").write_text(
        TRAINING.lstrip()
        .replace("        LINE\n", "")
        .replace("net.cuda()", "Model().cuda()")
        .replace("import torch\n", "import torch\nfrom net import Model\n", 1)
    )
    files = {file.name.name: file for file in rewrite_folder(tmp_path, processes=1).files}
    lines = files["net.py"].before.decode().splitlines()
    found = [lines[note.line - 1] for note in files["net.py"].findings if note.rule == "XLA113"]
    assert [line.strip() for line in found] == ["if use_extra:  # here"] * is_drawn
