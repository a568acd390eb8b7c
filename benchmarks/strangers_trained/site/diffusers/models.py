"""A VAE of one convolution, with the interface of diffusers' `AutoencoderKL`."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn


class _Gaussian:
    def __init__(self, moments: torch.Tensor) -> None:
        self.mean, log_variance = moments.chunk(2, dim=1)
        self.std = torch.exp(0.5 * log_variance.clamp(-30.0, 20.0))

    def sample(self) -> torch.Tensor:
        return self.mean + self.std * torch.randn_like(self.mean)


class AutoencoderKL(nn.Module):
    """Images of three channels, eight times smaller, in four channels."""

    def __init__(self) -> None:
        """Initialize from a generator of its own: weights that are loaded move nobody's random numbers."""
        super().__init__()
        self.encoder = nn.Conv2d(3, 8, kernel_size=8, stride=8)
        own = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for weight in self.parameters():
                weight.copy_(0.05 * torch.randn(weight.shape, generator=own))

    @classmethod
    def from_pretrained(cls, name: str) -> AutoencoderKL:
        """Return the same VAE for every name."""
        return cls()

    def encode(self, images: torch.Tensor) -> SimpleNamespace:
        """Return the distribution of the latents."""
        return SimpleNamespace(latent_dist=_Gaussian(self.encoder(images)))
