"""Losses with timm's interface."""

from __future__ import annotations

import torch
from torch import nn


class LabelSmoothingCrossEntropy(nn.CrossEntropyLoss):
    """Cross entropy of smoothed labels."""

    def __init__(self, smoothing: float = 0.1) -> None:
        """With this much."""
        super().__init__(label_smoothing=smoothing)


class SoftTargetCrossEntropy(nn.Module):
    """Cross entropy of shares of labels."""

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the mean over the batch."""
        return torch.sum(-target * torch.log_softmax(x, dim=-1), dim=-1).mean()
