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
from migrate.reading.tree.source import parse

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
]
ON_DEVICE = [
    "F.adaptive_avg_pool2d(x, 1)",
    "F.smooth_l1_loss(y, y.detach())",
    "F.pixel_shuffle(x, 2)",
    "F.gelu(y)",
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


def test_what_falls_back_is_what_is_reported() -> None:
    command = [sys.executable, "-c", MEASURE, json.dumps(ON_CPU + ON_DEVICE)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    measured = json.loads(done.stdout.splitlines()[-1])
    assert measured == dict.fromkeys(ON_CPU, True) | dict.fromkeys(ON_DEVICE, False)


@pytest.mark.parametrize("spelled", ON_CPU + ON_DEVICE)
def test_the_hazard_reports_it(spelled: str) -> None:
    assert reported(spelled) == (spelled in ON_CPU)
