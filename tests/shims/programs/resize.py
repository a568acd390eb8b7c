"""Gradients of resized images in a simulated replica; prints each that is as torch's on the CPU."""

import itertools
import sys

import torch
import torch_xla
from torch.nn import functional
from torch_xla.debug import metrics

torch.manual_seed(0)
device = torch_xla.device()
image = torch.randn(2, 3, 8, 9)
KINDS = (
    {"mode": "nearest"},
    {"mode": "bilinear", "align_corners": False},
    {"mode": "bilinear", "align_corners": True},
)
SIZES = (
    {"scale_factor": 2},
    {"size": (5, 13)},
    {"scale_factor": (1.7, 0.6)},
    {"scale_factor": 2.3, "recompute_scale_factor": True},
    {"size": (8, 9)},
    {"size": (1, 1)},
)
for kind, size, dtype in itertools.product(KINDS, SIZES, (torch.float32, torch.bfloat16)):
    metrics.clear_all()
    there = image.to(device, dtype).requires_grad_()
    here = image.to(dtype).float().clone().requires_grad_()
    resized = functional.interpolate(here, **kind, **size)
    gradient = torch.randn(resized.shape).to(dtype)
    with torch.autocast("xla", dtype=torch.bfloat16):  # which leaves this gradient as it is
        functional.interpolate(there, **kind, **size).backward(gradient.to(device))
    resized.backward(gradient.float())
    torch_xla.sync()
    on_host = [name for name in metrics.counter_names() if name.startswith("aten::")]
    limit = 4e-3 if dtype is torch.bfloat16 else 1e-6
    distance = (there.grad.cpu().float() - here.grad).norm() / here.grad.norm()
    right = "is right" if distance < limit and not on_host else f"differs by {distance}"
    sys.stdout.write(f"{kind} {size} {dtype} {right} {' '.join(on_host)}".rstrip() + "\n")
