"""Sums of bfloat16 in a simulated replica; prints the name of each that is not as torch's on the CPU."""

import sys

import torch
import torch_xla
from torch import nn
from torch.nn import functional

device = torch_xla.device()
torch.manual_seed(0)
x = torch.rand(8, 32, 32, 32).bfloat16()
SUMS = {
    "sum": lambda x: x.sum(),
    "sum of axes": lambda x: x.sum((0, 2, 3)),
    "sum as float32": lambda x: x.float().sum(),
    "sum as bfloat16": lambda x: x.sum(dtype=torch.bfloat16),
    "mean of float32 as bfloat16": lambda x: x.float().mean((1, 2), dtype=torch.bfloat16),
    "mean": lambda x: x.mean(),
    "norm": lambda x: x.norm(),
    "vector norm": torch.linalg.vector_norm,
    "variance": lambda x: x.var(),
    "softmax": lambda x: x.flatten(1).softmax(-1),
    "cumsum": lambda x: x.flatten().cumsum(0),
    "pooling": lambda x: functional.avg_pool2d(x, 32),
    "mse": lambda x: functional.mse_loss(x, torch.zeros_like(x)),
    "scatter": lambda x: torch.zeros(4, device=x.device, dtype=x.dtype).scatter_add(
        0, torch.arange(x.numel(), device=x.device) % 4, x.flatten()
    ),
}
LAYERS = {
    "linear": nn.Linear(32, 4),
    "convolution": nn.Conv2d(32, 4, 3),
    "transposed convolution": nn.ConvTranspose2d(32, 4, 2, 2),
    "prelu": nn.PReLU(),
}


def check(name: str, there: torch.Tensor, here: torch.Tensor, limit: float = 6e-3) -> None:
    there, here = there.detach().cpu().double(), here.detach().double()
    error = float((there - here).norm() / here.norm())
    verdict = "is right" if error < limit else f"is off by {error:.1e}"
    sys.stdout.write(f"{name} {verdict}\n")


for name, function in SUMS.items():
    result = function(x.to(device))
    check(name, result, function(x.double()))
    assert result.dtype == function(x).dtype, name
for name, layer in LAYERS.items():
    for where in ("cpu", device):
        layer.to(where).zero_grad()
        kind = torch.device(where).type
        with torch.autocast(kind, dtype=torch.bfloat16):
            result = layer((x - 0.75).to(where))
        result.float().sum().backward()
        last = list(layer.parameters())[-1]
        if kind == "cpu":
            expected = last.grad.clone()
    check(name, last.grad, expected)
