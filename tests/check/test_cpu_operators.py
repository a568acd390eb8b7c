"""The table of operators without a lowering says what torch_xla runs on the CPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
import torch_xla
from torch import Tensor
from torch.nn.utils.parametrizations import weight_norm
from torch_xla.debug import metrics

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.reading.tree.source import parse

Operation = Callable[[Tensor, Tensor], Tensor]

ON_CPU: dict[str, Operation] = {
    "F.unfold(x, 3)": lambda x, y: F.unfold(x, 3),
    "F.fold(x[0], (4, 4), 2)": lambda x, y: F.fold(x[0, :, :4].repeat(1, 1, 2)[..., :9], (4, 4), 2),
    "F.huber_loss(y, y)": lambda x, y: F.huber_loss(y, y.detach()),
    "F.glu(y)": lambda x, y: F.glu(y),
    "F.channel_shuffle(x, 2)": lambda x, y: F.channel_shuffle(x, 2),
    "F.interpolate(x, 4, mode='bicubic')": lambda x, y: F.interpolate(x, 4, mode="bicubic"),
    "F.interpolate(x, 4, mode='bilinear', antialias=True)": lambda x, y: F.interpolate(
        x, 4, mode="bilinear", antialias=True
    ),
    "F.interpolate(x, 4, mode='nearest-exact')": lambda x, y: F.interpolate(
        x, 4, mode="nearest-exact"
    ),
    "F.interpolate(y[None], scale_factor=2, mode='linear')": lambda x, y: F.interpolate(
        y[None], scale_factor=2, mode="linear"
    ),
    "F.interpolate(x[None], (4, 4, 4), mode='trilinear')": lambda x, y: F.interpolate(
        x[None], (4, 4, 4), mode="trilinear"
    ),
    "F.interpolate(x[None], (4, 4, 4))": lambda x, y: F.interpolate(x[None], (4, 4, 4)),
    "F.adaptive_avg_pool2d(x, 3)": lambda x, y: F.adaptive_avg_pool2d(x, 3),
    "torch.cdist(y, y)": lambda x, y: torch.cdist(y, y + 1),
    "torch.searchsorted(y, y)": lambda x, y: torch.searchsorted(y, y),
    "torch.nn.utils.parametrizations.weight_norm(layer)": lambda x, y: weight_norm(
        torch.nn.Linear(8, 8)
    ).to(y.device)(y),
    "y.median()": lambda x, y: y.median(),
    "y.nanmedian()": lambda x, y: y.nanmedian(),
    "y.nansum()": lambda x, y: y.nansum(),
    "y.unfold(1, 2, 2)": lambda x, y: y.unfold(1, 2, 2),
    "y.logcumsumexp(1)": lambda x, y: y.logcumsumexp(1),
    "y.lgamma()": lambda x, y: y.lgamma(),
    "torch.linalg.cross(y, y)": lambda x, y: torch.linalg.cross(y[:, :3], y[:, :3]),
    "torch.special.entr(y)": lambda x, y: torch.special.entr(y),
}
ON_DEVICE: dict[str, Operation] = {
    "F.adaptive_avg_pool2d(x, 1)": lambda x, y: F.adaptive_avg_pool2d(x, 1),
    "F.smooth_l1_loss(y, y)": lambda x, y: F.smooth_l1_loss(y, y.detach()),
    "F.pixel_shuffle(x, 2)": lambda x, y: F.pixel_shuffle(x, 2),
    "F.gelu(y)": lambda x, y: F.gelu(y),
    "y.cumsum(1)": lambda x, y: y.cumsum(1),
    "y.topk(2).values": lambda x, y: y.topk(2).values,
    "y.kthvalue(2).values": lambda x, y: y.kthvalue(2).values,
    "torch.linalg.svdvals(y)": lambda x, y: torch.linalg.svdvals(y),
    "F.pad(x, (1, 1, 1, 1), mode='reflect')": lambda x, y: F.pad(x, (1, 1, 1, 1), mode="reflect"),
}


def runs_on_cpu(operation: Operation) -> bool:
    """Whether torch_xla falls back in the forward or the backward pass of `operation`."""
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(1, 4, 8, 8, generator=generator).to(torch_xla.device()).requires_grad_()
    rows = torch.rand(4, 8, generator=generator).to(torch_xla.device()).requires_grad_()
    metrics.clear_all()
    result = operation(image, rows)
    if result.requires_grad:
        result.sum().backward()
    return any(name.startswith("aten::") for name in metrics.counter_names())


def reported(spelled: str) -> bool:
    """Whether the hazard reports `spelled` in the forward pass of a module."""
    script = f"""
    import torch
    import torch.nn.functional as F

    class Net(torch.nn.Module):
        def forward(self, x, y, layer):
            return {spelled}
    """
    source = parse(inspect.cleandoc(script).encode() + b"\n", Path("s.py"))
    return any(finding.code == "XLA111" for finding in check_source(source, Config()))


@pytest.mark.parametrize("spelled", ON_CPU)
def test_what_runs_on_the_cpu_is_reported(spelled: str) -> None:
    assert runs_on_cpu(ON_CPU[spelled])
    assert reported(spelled) or "weight_norm" in spelled  # reported where the layer is built


@pytest.mark.parametrize("spelled", ON_DEVICE)
def test_what_runs_on_the_device_is_not_reported(spelled: str) -> None:
    assert not runs_on_cpu(ON_DEVICE[spelled])
    assert not reported(spelled)
