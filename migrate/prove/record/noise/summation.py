"""Run the original with another order of summation, to measure how far rounding alone moves it.

Linear and convolution layers get their inputs and their weights with the examples and the summed features in
reverse, and batch normalization its examples. Mathematically nothing changes, but in float32 every sum
rounds differently, including those of the gradients. Measured on the CPU: this changes the bits of a
convolution net with batch normalization, of a transformer and of a perceptron, by 1e-8 to 2e-7 at the first
step. Switching oneDNN off or using other numbers of threads changes those of the convolution net only, or a
gradient norm in the tenth digit.

One such run is one sample of the effect of rounding. A ReLU whose input is a rounding away from zero passes
the gradient in one run and not in the other, which moves all gradients below it at once. In a ResNet-18 on 4
images the forward pass was 2e-6 from float64's, and the gradients of three ways to round it 2e-6, 4e-3 and
1.2e-2 (measured). So each run of a proof has its own order, by the number in the name of its recording's
folder.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from typing import Any

import torch

from migrate.prove.record.noise import rounding
from migrate.prove.recording.operators import put
from migrate.prove.recording.records import RECORD_DIRECTORY

# Fraction of the size of an axis, by which each further run rotates it: multiples of it never meet again.
_SHARE = (5**0.5 - 1) / 2
_turns = 0


def install_in_half() -> None:
    """Install with the rounding of 16 bits where the proof has switched autocast off."""
    install(half=True)


def install(*, half: bool = False) -> None:
    """Replace `linear`, `conv1d` to `conv3d` and `batch_norm` of `torch.nn.functional`."""
    global _turns
    number = re.search(r"\d+$", os.environ.get(RECORD_DIRECTORY, ""))
    _turns = int(number.group()) if number else 0
    functional = torch.nn.functional
    rounding.install(_turns, half=half)
    put(functional, "linear", _linear(functional.linear))
    for name in ("conv1d", "conv2d", "conv3d"):
        put(functional, name, _convolution(getattr(functional, name)))
    put(functional, "batch_norm", _normalization(functional.batch_norm))


def _linear(multiply: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(multiply)
    def linear(input: Any, weight: Any, bias: Any = None) -> Any:  # noqa: A002 - torch's name
        if not _plain(input, weight) or input.dim() < 2 or weight.dim() != 2:
            return multiply(input, weight, bias)
        return _back(multiply(_turned(input, 0, -1), _turned(weight, -1), bias))

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
        # In groups each output uses only some of the channels: they keep their positions.
        axes = (0, 1) if input.size(1) == weight.size(1) else (0,)
        turned = _turned(input, *axes), _turned(weight, *axes[1:])
        return _back(convolve(*turned, *args, **kwargs))

    return convolution


def _normalization(normalize: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(normalize)
    def normalization(input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002 - torch's name
        if not _plain(input):
            return normalize(input, *args, **kwargs)
        return _back(normalize(_turned(input, 0), *args, **kwargs))

    return normalization


def _turned(tensor: torch.Tensor, *axes: int) -> torch.Tensor:
    """Reverse the tensor along these axes, starting at another position in every run."""
    shifts = [_shift(tensor.size(axis)) for axis in axes]
    tensor = tensor.flip(axes)
    return tensor.roll(shifts, axes) if any(shifts) else tensor


def _back(tensor: torch.Tensor) -> torch.Tensor:
    """Restore the order of the examples."""
    shift = _shift(tensor.size(0))
    return (tensor.roll(-shift, 0) if shift else tensor).flip(0)


def _shift(size: int) -> int:
    return round(_turns * _SHARE * size) % size if size else 0


def _plain(*tensors: Any) -> bool:
    """Whether the tensors are torch's own: a subclass may not support `flip`."""
    return all(
        type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
        for tensor in tensors
    )
