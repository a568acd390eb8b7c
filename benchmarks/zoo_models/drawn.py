"""Weights that all differ: what is 0 or 1 everywhere hides what a port forgets, and makes ties of scores."""

from __future__ import annotations

from typing import Any

# How far from their constant: small against the weights that are drawn anyway.
SPREAD = 0.02


def drawn(model: Any) -> Any:
    """The model, its constant parameters and the statistics of its norms changed a little."""
    import torch

    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.numel() > 1 and bool((parameter == parameter.flatten()[0]).all()):
                parameter += SPREAD * torch.randn(parameter.shape, generator=draw)
        for name, buffer in model.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer += SPREAD * torch.rand(buffer.shape, generator=draw)
    return model
