"""Infinities in buffers, parameters and tensors that are broadcast over XLA."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

SCRIPT = """
import math
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

LOWEST = float("-inf")


def first_column(n, value=LOWEST):
    mask = torch.zeros(n, n)
    mask[:, 0] = value
    return mask


class Net(nn.Module):
    def causal(self, n):
        mask = torch.empty(n, n)
        mask.fill_(LOWEST)
        mask.triu_(1)
        return mask

    def __init__(self, n=4):
        super().__init__()
        self.lin = nn.Linear(n, n)
        keep = torch.ones(n, n).tril() == 1
        {}

    def forward(self, x):
        return self.lin(x).masked_fill(x > 0, float("-inf")).softmax(-1)


def send(tensors):
    for tensor in tensors.values():
        dist.broadcast(tensor, 0)


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    net = Net().cuda()
    {}


main()
"""
WRAPS = "net = DDP(net, device_ids=[dist.get_rank()])"
WITHOUT_BUFFERS = "net = DDP(net, device_ids=[dist.get_rank()], broadcast_buffers=False)"
SENDS = "send(net.state_dict())"
MASK = 'self.register_buffer("mask", torch.full((n, n), float("-inf")).triu(1){})'
INFINITE = [
    MASK.format(""),
    MASK.format(", persistent=False"),
    'self.register_buffer("mask", self.causal(n))',
    'self.register_buffer("mask", first_column(n))',
    'self.register_buffer("mask", torch.where(keep, 0.0, -torch.inf)[None])',
    'self.register_buffer("mask", keep.float().masked_fill(~keep, LOWEST).masked_fill(keep, 0.0))',
    'self.register_buffer("mask", torch.from_numpy(np.triu(np.full((n, n), -np.inf), 1)).float())',
    'self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(n))',
    'self.register_buffer("mask", torch.ones(n, n).tril().log())',
    'self.register_buffer("mask", torch.ones(n, n) * -math.inf)',
    'self.register_buffer(tensor=torch.zeros(n, n).fill_(-math.inf), name="mask")',
    "self.best = nn.Parameter(torch.tensor(math.inf), requires_grad=False)",
    "nn.init.constant_(self.lin.bias, -torch.inf)",
    'self.register_buffer("mask", torch.zeros(n)); self.mask.data[0] = LOWEST',
    'self.register_buffer("mask", torch.zeros(n)); self.mask = self.mask.masked_fill(keep, LOWEST)',
    "self.best = nn.Buffer(torch.zeros(n)); self.best.copy_(torch.tensor(math.inf))",
    "self.best = nn.Buffer(torch.tensor(math.inf))",
]
FINITE = [
    "self.mask = torch.full((n, n), LOWEST).triu(1)",
    'self.register_buffer("mask", torch.full((n, n), torch.finfo(torch.float32).min))',
    'self.register_buffer("mask", torch.zeros(n, n) == LOWEST)',
    'self.register_buffer("mask", torch.full((n, n), LOWEST).softmax(-1))',
    'self.register_buffer("mask", torch.full((n, n), LOWEST).clamp(min=-1e9))',
    'self.register_buffer("mask", torch.full((n, n), LOWEST).to(torch.bool))',
    'self.register_buffer("mask", torch.where(self.causal(n) == LOWEST, -1e9, 0.0))',
    'self.register_buffer("mask", None)',
]


def reported(held: str, sends: str) -> int:
    source = parse(SCRIPT.format(held, sends).encode(), Path("script.py"))
    return len({hit.line for hit in check_source(source, Config(select=("XLA869",)))})


@pytest.mark.parametrize("held", INFINITE)
def test_infinities_that_a_wrapped_model_holds(held: str) -> None:
    assert reported(held, WRAPS) == 1


@pytest.mark.parametrize("held", FINITE)
def test_finite_values_and_plain_attributes(held: str) -> None:
    assert reported(held, WRAPS) == 0


@pytest.mark.parametrize(
    ("sends", "buffers", "hidden", "parameters"),
    [
        (WITHOUT_BUFFERS, 0, 0, 1),
        (SENDS, 1, 0, 1),
        ("wrapper = DDP\n    net = wrapper(net)", 1, 1, 1),
        ("print(isinstance(net, (DDP, nn.Module)), type(net) is DDP)", 0, 0, 0),
        ("[dist.broadcast(b, 0) for b in net.buffers()]", 1, 1, 0),
        (
            "both = list(net.parameters())\n    for p in both:\n        dist.broadcast(p.data, 0)",
            0,
            0,
            1,
        ),
        ("dist.broadcast(torch.zeros(2).cuda(), 0)", 0, 0, 0),
        ("net(torch.ones(4, 4).cuda())", 0, 0, 0),
    ],
)
def test_only_what_is_broadcast(sends: str, buffers: int, hidden: int, parameters: int) -> None:
    assert reported(MASK.format(""), sends) == buffers
    assert reported(MASK.format(", persistent=False"), sends) == hidden
    assert reported("self.best = nn.Parameter(torch.tensor(math.inf))", sends) == parameters


def test_a_tensor_that_is_broadcast_by_itself() -> None:
    best = "best = torch.tensor([float('inf')]).cuda()\n    dist.broadcast(best, 0{})"
    assert reported("pass", best.format("")) == 1
    assert reported("pass", best.format(", group=dist.new_group(backend='gloo')")) == 0


def test_a_model_in_another_file(tmp_path: Path) -> None:
    model, _, rest = SCRIPT.format(MASK.format(""), WRAPS).partition("\n\ndef send")
    imports, _, _ = model.partition("LOWEST")
    (tmp_path / "model.py").write_text(model)
    (tmp_path / "train.py").write_text(f"{imports}from model import Net\n\n\ndef send{rest}")
    project = rewrite_folder(tmp_path, processes=1)
    rules = {str(file.name): [note.rule for note in file.findings] for file in project.files}
    assert rules["model.py"] == ["XLA869"]
    assert "XLA869" not in rules["train.py"]


@pytest.mark.parametrize("sends", [WRAPS, SENDS])
@pytest.mark.parametrize(("style", "count"), [("native", 1), ("portable", 0)])
def test_the_rewrite_reports_it_where_shims_does_not_mend_it(
    style: Style, count: int, sends: str
) -> None:
    source = parse(SCRIPT.format(MASK.format(""), sends).encode(), Path("script.py"))
    rewritten = rewrite_source(source, options=RewriteOptions(style=style))
    assert len([note for note in rewritten.findings if note.rule == "XLA869"]) == count
