"""A norm that does not take the mean off."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.norms import Moments, written_out
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, loaded, normal
from migrate.parity.causes.frame.scene import Scene


def _truth() -> nn.Module:
    return nn.LayerNorm(16, bias=False)


def _faulty(twin: nn.Module) -> nn.Module:
    return loaded(nn.RMSNorm(16, eps=1e-5), twin)


class MeanKept(Pattern):
    """RMSNorm in the place of LayerNorm, or the reverse.

    **What it is.** LayerNorm takes the mean off before it divides, RMSNorm does not. With a small mean
    the two are close enough to be taken for noise.

    **What to do.** Use the same on both sides. In Flax `nnx.RMSNorm` or `nnx.LayerNorm(use_bias=False)`;
    a configuration that says `norm_type` or `rms_norm_eps` tells which.
    """

    name = "mean-kept"
    rank = 0
    examples = (Example(_truth, _faulty, normal(4, 16, mean=0.2), "does not take the mean off"),)

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the other norm."""
        names = ("layer_norm", "group_norm", "instance_norm")
        for where, change in scene.replaced(lambda: written_out(_kept, names)):
            yield Variant(
                f"{{side}} does not take the mean off before it normalises{where}", change
            )
        for where, change in scene.replaced(lambda: written_out(_taken, ("rms_norm",))):
            yield Variant(f"{{side}} takes the mean off before it normalises{where}", change)


def _kept(moments: Moments) -> Any:
    squares = moments.x.square().mean(moments.axes, keepdim=True)
    return moments.x / torch.sqrt(squares + moments.eps)


def _taken(moments: Moments) -> Any:
    centred = moments.x - moments.x.mean(moments.axes, keepdim=True)
    return centred / torch.sqrt(centred.square().mean(moments.axes, keepdim=True) + moments.eps)
