"""A convolution's kernel that lies mirrored."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import nn

from migrate.parity.causes.frame.changes import weight
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Scene


def _truth() -> nn.Module:
    return nn.ConvTranspose2d(3, 4, 3, stride=2)


def _faulty(twin: nn.Module) -> nn.Module:
    twin.weight.data = twin.weight.data.flip(2, 3)
    return twin


class KernelFlipped(Pattern):
    """A convolution's kernel that lies mirrored.

    **What it is.** torch's `ConvTranspose` is the gradient of a convolution, which mirrors the kernel in
    space; Flax's `ConvTranspose` does not mirror (`transpose_kernel=False`). `scipy.signal.convolve` and
    `jnp.convolve` mirror too, `nn.Conv` of both does not.

    **What to do.** Mirror the kernel when it is converted (`w[::-1, ::-1]`), or set
    `transpose_kernel=True`, which also exchanges its input and output channels.
    """

    name = "kernel-flipped"
    rank = 1
    examples = (Example(_truth, _faulty, normal(2, 3, 5, 5), "lies mirrored"),)

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the kernels mirrored in all of their axes in space."""
        for part, name in scene.weights(_is_kernel):
            axes = list(range(2, getattr(part.module, name).ndim))
            change = partial(weight, part.module, name, partial(torch.flip, dims=axes))
            yield Variant(f"{name} of {part.name} lies mirrored in {{side}}", change)


def _is_kernel(module: nn.Module, _name: str, tensor: torch.Tensor) -> bool:
    return (
        tensor.ndim in (3, 4, 5) and "Conv" in type(module).__name__ and max(tensor.shape[2:]) > 1
    )
