"""XLA880 and XLA881: what torch_xla computes otherwise than torch, and what it refuses, measured."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

OTHERWISE = [
    "x.amax()",
    "torch.amin(x)",
    "x.amax(dim=())",
    "x.sum(dim=[])",
    "x.mean(())",
    "(x > 3).count_nonzero()",
    "(x > 3).cumsum(0)",
    "torch.cumsum(x > 3, dim=0)",
    "x.to(torch.uint8).mul(90).to(torch.uint8).cumsum(0)",
    "(x > 90).sum().clamp(min=1e-6)",
    "(x > 90).sum().clamp_min(1e-6)",
    "y.long().clip(0.5)",
    "torch.arange(0, 1, 0.1, device=x.device)",
    "torch.arange(0, 1, 1 / 7, device=x.device)",
    "x.norm(float('inf'))",
    "torch.norm(x, p=math.inf, dim=1)",
    "F.normalize(x, p=math.inf)",
    "F.pairwise_distance(x[0], x[1] + 1, p=math.inf)",
    "x.diagonal(dim1=0, dim2=1)",
    "torch.diagonal(x, 0, 0, 1)",
    "torch.einsum('iib->b', x[:, :2])",
    "torch.linalg.matrix_rank(x)",
    "F.avg_pool2d(x, 2, 1, ceil_mode=True, padding=1, count_include_pad=False, divisor_override=3)",
    "pack_padded_sequence(x, torch.tensor([3, 2]), batch_first=True).data",
]
REFUSED = [
    "torch.where(x > 3, x, torch.tensor(0.0))",
    "torch.where(x > 3, torch.tensor(0.0), x)",
    "x.clamp(min=torch.tensor(1.0))",
    "torch.lerp(x, x, torch.tensor(0.5))",
    "torch.remainder(x, torch.tensor(5.0))",
    "F.mse_loss(x.mean(), torch.tensor(1.0))",
    "F.smooth_l1_loss(x.mean(), torch.tensor(1.0))",
]
RIGHT = [
    "x.max()",
    "x.amax(-1)",
    "x.amin(dim=(0, 1))",
    "((x > 3) != 0).sum()",
    "(x > 3).cumsum(0, dtype=torch.int64)",
    "(x > 3).long().cumsum(0)",
    "(x > 90).sum().clamp(min=1)",
    "(x > 90).sum().float().clamp(min=1e-6)",
    "torch.arange(0, 1, 0.25, device=x.device)",
    "torch.arange(10, device=x.device) * 0.1",
    "torch.linalg.vector_norm(x, float('inf'))",
    "x.norm(1)",
    "F.normalize(x)",
    "torch.diagonal(x, dim1=-2, dim2=-1)",
    "x.movedim((0, 1), (-2, -1)).diagonal(dim1=-2, dim2=-1)",
    "torch.diagonal(x, 0, 0, 2)",
    "torch.einsum('bii->bi', x[:, :, :3])",
    "torch.einsum('iib->ib', x[:, :2])",
    "F.avg_pool2d(x, 2, divisor_override=3)",
    "torch.where(x > 3, x, 0.0)",
    "torch.where(x > 3, x, torch.tensor(0.0, device=x.device))",
    "x * torch.tensor(2.0) + torch.maximum(x, torch.tensor(3.0))",
    "x.clamp(min=1e-6)",
]
# Gradients of activations, where the input is negative.
ELU = ["F.elu(z)", "F.elu(z, 0.5)", "F.selu(z)", "F.celu(z)", "torch.selu(z)", "nn.ELU()(z)"]
IN_PLACE = [
    "F.elu(z.clone(), 0.5, inplace=True)",
    "torch.selu_(z.clone())",
    "nn.ELU(inplace=True)(z * 1)",
]
NAMES = """
import json, math, sys
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
"""
MEASURE = f"""{NAMES}
import torch_xla

def same(spelled):
    results = []
    for device in ("cpu", "xla"):
        x = torch.arange(24.0).reshape(2, 3, 4).to(device)
        y = x[0]
        try:
            results.append(eval(spelled, globals() | {{"x": x, "y": y}}).cpu())
        except RuntimeError:
            return "raises"
    a, b = results
    return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a.double(), b.double())

print(json.dumps({{spelled: same(spelled) for spelled in json.loads(sys.argv[1])}}))
"""
MEASURE_SLOPES = f"""{NAMES}
import torch_xla

torch.ones(1, device="xla", requires_grad=True).sum().backward()

def same(spelled):
    slopes = []
    for device in ("cpu", "xla"):
        z = torch.linspace(-2, 2, 8).to(device).requires_grad_()
        result = eval(spelled, globals() | {{"z": z}})
        slopes.append(torch.autograd.grad(result.sum(), z)[0].cpu())
    return torch.allclose(*slopes, 1e-4, 1e-5)

print(json.dumps({{spelled: same(spelled) for spelled in json.loads(sys.argv[1])}}))
"""


def codes(spelled: str) -> set[str]:
    """Return which of the two hazards report `spelled` in the forward pass of a module."""
    script = f"""{NAMES}

class Net(torch.nn.Module):
    def forward(self, x, y):
        return {spelled}
"""
    source = parse(inspect.cleandoc(script).encode() + b"\n", Path("s.py"))
    found = check_source(source, Config(select=("XLA880", "XLA881")))
    return {finding.code for finding in found}


@pytest.mark.xla
@pytest.mark.long
def test_torch_xla_computes_what_the_table_says() -> None:
    command = [sys.executable, "-c", MEASURE, json.dumps(OTHERWISE + REFUSED + RIGHT)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    measured = json.loads(done.stdout.splitlines()[-1])
    want = dict.fromkeys(OTHERWISE, False) | dict.fromkeys(REFUSED, "raises")
    assert measured == want | dict.fromkeys(RIGHT, True)


@pytest.mark.xla
@pytest.mark.long
def test_the_gradient_of_elu_is_right_in_place_only() -> None:
    """XLA883 (the rule elu-gradient) says so, and rewrites the first to the second."""
    command = [sys.executable, "-c", MEASURE_SLOPES, json.dumps(ELU + IN_PLACE)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    measured = json.loads(done.stdout.splitlines()[-1])
    assert measured == dict.fromkeys(ELU, False) | dict.fromkeys(IN_PLACE, True)


@pytest.mark.parametrize("spelled", OTHERWISE)
def test_what_is_computed_otherwise_is_reported(spelled: str) -> None:
    assert codes(spelled) == {"XLA880"}


@pytest.mark.parametrize("spelled", REFUSED)
def test_a_number_of_the_host_is_reported(spelled: str) -> None:
    assert codes(spelled) == {"XLA881"}


@pytest.mark.parametrize("spelled", RIGHT)
def test_what_is_the_same_is_not_reported(spelled: str) -> None:
    assert codes(spelled) == set()


def test_tensors_of_the_host_are_left_alone() -> None:
    script = b"""
import math
import torch

weights = torch.rand(4, 4)
print(weights.amax(), (weights > 0).count_nonzero(), (weights > 0).cumsum(0), weights.norm(math.inf))
steps = torch.arange(0, 1, 0.1)
print(torch.where(weights > 0, weights, torch.tensor(0.0)))
"""
    assert not check_source(parse(script, Path("s.py")), Config(select=("XLA880", "XLA881")))


def test_tensors_on_the_device_are_reported_outside_of_steps() -> None:
    script = b"""
import torch

model = torch.nn.Linear(4, 4).cuda()
x = torch.rand(4, 4, device="cuda")
print(x.amax())
for p in model.parameters():
    print(p.abs().amax(), p.grad.norm(float("inf")))
"""
    found = check_source(parse(script, Path("s.py")), Config(select=("XLA880",)))
    assert [finding.line for finding in found] == [6, 8, 8]


def test_the_remedy_names_the_activation_itself() -> None:
    script = "from torch import nn\n\nact = nn.SELU()\n"
    findings = rewrite_source(parse(script.encode(), Path("script.py"))).findings
    assert "`F.selu(x.clone(), inplace=True)`" in findings[0].message
