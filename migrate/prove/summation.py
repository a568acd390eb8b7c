"""Run the original with another order of summation, to see by how much rounding alone moves it.

Linear and convolution layers get their inputs and their weights with the examples and the summed
features in reverse, and batch normalisation its examples: by mathematics nothing changes, in float32
every sum rounds otherwise, those of the gradients too. Measured on the CPU: this changes the bits of a
convolution net with batch normalisation, of a transformer and of a perceptron, by 1e-8 to 2e-7 at the
first step; switching oneDNN off or taking other numbers of threads changes those of the convolution net
only, or of a gradient norm in the tenth digit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def install() -> None:
    """Replace `linear`, `conv1d` to `conv3d` and `batch_norm` of `torch.nn.functional`."""
    functional = torch.nn.functional
    functional.linear = _linear(functional.linear)
    for name in ("conv1d", "conv2d", "conv3d"):
        setattr(functional, name, _convolution(getattr(functional, name)))
    functional.batch_norm = _normalisation(functional.batch_norm)


def _linear(multiply: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(multiply)
    def linear(input: Any, weight: Any, bias: Any = None) -> Any:  # noqa: A002 - torch's name
        if not _plain(input, weight) or input.dim() < 2 or weight.dim() != 2:
            return multiply(input, weight, bias)
        return multiply(input.flip(0, -1), weight.flip(-1), bias).flip(0)

    return linear


def _convolution(convolve: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(convolve)
    def convolution(
        input: Any,  # noqa: A002 - torch's name for it
        weight: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if not _plain(input, weight) or input.dim() != weight.dim():
            return convolve(input, weight, *args, **kwargs)
        # In groups each output sees some of the channels only: they keep their places.
        axes = (0, 1) if input.size(1) == weight.size(1) else (0,)
        return convolve(input.flip(axes), weight.flip(axes[1:]), *args, **kwargs).flip(0)

    return convolution


def _normalisation(normalise: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(normalise)
    def normalisation(input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002 - torch's name
        if not _plain(input):
            return normalise(input, *args, **kwargs)
        return normalise(input.flip(0), *args, **kwargs).flip(0)

    return normalisation


def _plain(*tensors: Any) -> bool:
    """Whether the tensors are torch's own: a subclass may know no `flip`."""
    return all(
        type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
        for tensor in tensors
    )
