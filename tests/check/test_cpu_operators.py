"""The table of operators without a lowering says what torch_xla runs on the CPU."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.check.hazard import Severity
from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

ON_CPU = [
    "F.unfold(x, 3)",
    "F.fold(x.reshape(1, 16, 16), (8, 8), 2, stride=2)",
    "F.huber_loss(y, y.detach())",
    "F.glu(y)",
    "F.channel_shuffle(x, 2)",
    "F.interpolate(x, 4, mode='bicubic')",
    "F.interpolate(x, 4, mode='bilinear', antialias=True)",
    "F.interpolate(x, 4, mode='nearest-exact')",
    "F.interpolate(y[None], scale_factor=2, mode='linear')",
    "F.interpolate(x[None], (4, 4, 4), mode='trilinear')",
    "F.interpolate(x[None], (4, 4, 4))",
    "F.adaptive_avg_pool2d(x, 3)",
    "F.adaptive_max_pool2d(x, 3)",
    "F.interpolate(x, size=(3, 3), mode='area')",
    "F.interpolate(x, scale_factor=2, mode='area')",
    "F.interpolate(y[None], 5, mode='area')",
    "torch.cdist(y, y + 1)",
    "torch.searchsorted(y, y)",
    "y.median()",
    "y.nanmedian()",
    "y.nansum()",
    "y.unfold(1, 2, 2)",
    "y.logcumsumexp(1)",
    "y.lgamma()",
    "torch.linalg.cross(y[:, :3], y[:, :3])",
    "torch.special.entr(y)",
    "torch.multinomial(y.softmax(1), 3)",
    "torch._int_mm(y.to(torch.int8), y.to(torch.int8).mT)",
    "torch._scaled_mm(z := x.detach().view(16, 16).to(torch.float8_e4m3fn), z.mT, *[x.new_ones(())] * 2)",
]
ON_DEVICE = [
    "F.adaptive_avg_pool2d(x, 1)",
    "F.interpolate(x, 1, mode='area')",
    "F.smooth_l1_loss(y, y.detach())",
    "F.pixel_shuffle(x, 2)",
    "F.gelu(y)",
    "torch.multinomial(y.softmax(1), 1)",
    "torch.multinomial(y.softmax(1), 3, replacement=True)",
    "y.cumsum(1)",
    "y.topk(2).values",
    "y.kthvalue(2).values",
    "torch.linalg.svdvals(y)",
    "F.pad(x, (1, 1, 1, 1), mode='reflect')",
]
# In a process of its own: to import torch_xla replaces functions of torch.distributed.
MEASURE = """
import json, sys
import torch, torch_xla
import torch.nn.functional as F
from torch_xla.debug import metrics

answers = {}
for spelled in json.loads(sys.argv[1]):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1, 4, 8, 8, generator=generator).to(torch_xla.device()).requires_grad_()
    y = torch.rand(4, 8, generator=generator).to(torch_xla.device()).requires_grad_()
    metrics.clear_all()
    result = eval(spelled)
    if result.requires_grad:
        result.sum().backward()
    answers[spelled] = any(name.startswith("aten::") for name in metrics.counter_names())
print(json.dumps(answers))
"""


def reported(spelled: str) -> bool:
    """Whether the hazard reports `spelled` in the forward pass of a module."""
    script = f"""
    import torch
    import torch.nn.functional as F

    class Net(torch.nn.Module):
        def forward(self, x, y):
            return {spelled}
    """
    source = parse(inspect.cleandoc(script).encode() + b"\n", Path("s.py"))
    return any(finding.code == "XLA111" for finding in check_source(source, Config()))


@pytest.mark.long
def test_what_falls_back_is_what_is_reported() -> None:
    command = [sys.executable, "-c", MEASURE, json.dumps(ON_CPU + ON_DEVICE)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    measured = json.loads(done.stdout.splitlines()[-1])
    assert measured == dict.fromkeys(ON_CPU, True) | dict.fromkeys(ON_DEVICE, False)


@pytest.mark.parametrize("spelled", ON_CPU + ON_DEVICE)
def test_the_hazard_reports_it(spelled: str) -> None:
    assert reported(spelled) == (spelled in ON_CPU)


SIZED = """
import torch
import torch.nn.functional as F
from torch import nn

SIZE = 3
OUT = (3, 3)


class Net(nn.Module):
    def __init__(self, size=SIZE, mode="area"):
        super().__init__()
        self.size, self.mode = size, mode
        self.conv = nn.Conv2d(3, 3, 3)
        {made}

    def forward(self, x):
        x = self.conv(x)
        return {run}
"""


@pytest.mark.parametrize(
    ("made", "run", "severities"),
    [
        ("pass", "F.interpolate(x, size=OUT, mode=self.mode)", ["info"]),
        ("pass", "F.interpolate(x, size=x.shape[-1] // 3, mode='area')", ["info"]),
        ("pass", "F.interpolate(x, scale_factor=(0.5, 0.25), mode='area')", ["info"]),
        ("pass", "F.interpolate(x, scale_factor=0.3, mode='area')", ["warning"]),
        ("self.up = nn.Upsample(scale_factor=2, mode='area')", "self.up(x)", ["warning"]),
        ("self.up = nn.Upsample(size=OUT, mode='area')", "self.up(x)", ["info"]),
        ("self.pool = nn.AdaptiveAvgPool2d(size)", "self.pool(x)", ["info"]),
        ("self.pool = nn.AdaptiveMaxPool2d(OUT)", "self.pool(x)", ["info"]),
        ("self.net = nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(3))", "self.net(x)", ["info"]),
        ("self.pool = nn.AdaptiveAvgPool2d((1, 1))", "self.pool(x)", []),
        ("self.net = nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1))", "self.net(x)", []),
        ("pass", "F.interpolate(x, size=(1, 1), mode='area')", []),
    ],
)
def test_poolings_to_a_size(made: str, run: str, severities: list[str]) -> None:
    source = parse(SIZED.format(made=made, run=run).encode(), Path("script.py"))
    found = check_source(source, Config(select=("XLA111",)))
    assert [hit.severity.value for hit in found] == severities


@pytest.mark.parametrize("style", ["native", "portable"])
def test_the_rewrite_mentions_a_pooling_to_a_size(style: Style) -> None:
    script = """
import torch
import torch.nn.functional as F

model = torch.nn.Conv2d(3, 8, 3, padding=1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    h = model(torch.ones(2, 3, 32, 32, device="cuda"))
    F.interpolate(h, size=(3, 3), mode="area").mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    done = rewrite_source(
        parse(script.encode(), Path("train.py")), options=RewriteOptions(style=style)
    )
    (note,) = [note for note in done.findings if note.rule == "XLA111"]
    assert (note.line, note.severity) == (9, Severity.INFO)


@pytest.mark.parametrize(
    ("call", "reported"),
    [
        ("torch.multinomial(p, 1)", False),
        ("p.multinomial(1)", False),
        ("torch.multinomial(p, num_samples=3, replacement=True)", False),
        ("torch.multinomial(p, 3)", True),
        ("p.multinomial(3)", True),
        ("torch.multinomial(p, 1, generator=g)", True),
        ("torch.multinomial(p, n)", True),
    ],
)
def test_multinomial_runs_on_the_cpu_for_several_samples_without_replacement(
    call: str, reported: bool
) -> None:
    """Measured with torch_xla 2.9: the counter `aten::multinomial` in a process of its own."""
    script = f"""
import torch


class Sampler(torch.nn.Module):
    def forward(self, logits, n, g):
        p = logits.softmax(-1)
        return {call}
"""
    found = check_source(parse(script.encode(), Path("script.py")), Config(select=("XLA111",)))
    assert bool(found) is reported
