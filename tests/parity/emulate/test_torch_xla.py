"""The emulation on tensors of torch_xla: the same roundings, inside of the graph."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import torch
import torch_xla
import torch_xla.debug.metrics as metrics
from torch.nn import functional

from migrate.parity.emulate.torch_mode import emulated
from migrate.parity.emulate.torch_split import TorchSplit

torch.manual_seed(0)
device, split = torch_xla.device(), TorchSplit()
x = torch.randn(10000) * torch.exp(15 * torch.randn(10000))
x = torch.cat([x, torch.tensor([0.0, float("inf"), -3.4e38, 1.00390625, -1.01171875])])
for function in (
    split.nearest, split.truncated, lambda one: split.rest(one, split.truncated(one)), split.numbers
):
    here, there = function(x), function(x.to(device)).cpu()
    normal = here.abs() > 2e-38  # XLA flushes the others to zero
    assert torch.equal(here[normal], there[normal])

q = torch.randn(1, 2, 6, 8)
w = torch.randn(5, 8)
kernel = torch.randn(3, 2, 2, 2)


def everything(q, w, kernel):
    w = w.clone().requires_grad_()
    out = torch.einsum("bhij,kj->bhik", q, w)
    out.sum().backward()
    attended = functional.scaled_dot_product_attention(q, q, q)
    return [out.detach(), w.grad, attended, functional.conv2d(q, kernel), q @ q.mT]


for precision in ("default", "high", "highest"):
    with emulated(precision) as seen:
        here = everything(q, w, kernel)
    with emulated(precision) as seen_there:
        there = everything(q.to(device), w.to(device), kernel.to(device))
    torch_xla.sync()
    assert sum(seen.emulated.values()) == sum(seen_there.emulated.values()), (seen, seen_there)
    assert not seen_there.unhandled
    for one, other in zip(here, there):
        distance = (one - other.cpu()).norm() / one.norm()
        assert distance < 5e-7, (precision, distance)
left = [name for name in metrics.counter_names() if name.startswith("aten::")]
assert not left, left
print("done")
"""


@pytest.mark.xla
@pytest.mark.long
def test_the_emulation_of_torch_xla_is_that_of_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT],
        env=os.environ | {"PJRT_DEVICE": "CPU"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "done\n", done.stderr
