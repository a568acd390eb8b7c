"""Cumulative sums and products on the device, with gradients, in place and into a tensor that is given."""

from __future__ import annotations

import sys

import torch

device, out = sys.argv[1:]
values = torch.linspace(0.5, 2.0, 12).reshape(3, 4).to(device).requires_grad_()
(values.cumsum(0).square().sum() + values.cumprod(1).sum()).backward()
plain = values.detach()
given = torch.empty(3, 4, device=device)
torch.cumsum(plain, 1, out=given)
results = {
    "gradient": values.grad,
    "into": given,
    "in place": plain.clone().cumsum_(0),
    "of booleans": (plain > 1).cumsum(-1),
    "product": plain.cumprod(0),
}
torch.save({name: result.cpu() for name, result in results.items() if result is not None}, out)
