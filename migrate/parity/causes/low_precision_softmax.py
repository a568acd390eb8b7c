"""A softmax that is computed in 16 bits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Scene


class _Truth(nn.Module):
    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        return torch.softmax(scores, -1)


class _Faulty(nn.Module):
    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        return torch.softmax(scores.bfloat16(), -1).to(scores.dtype)


class LowPrecisionSoftmax(Pattern):
    """A softmax that is computed in 16 bits.

    **What it is.** The scores are rounded to bfloat16 (or float16) before the softmax: an autocast that
    does not except it, a `dtype=` of the attention, a missing `.astype(jnp.float32)`. Scores of 20 are
    then off by 0.06, and their weights by 6 %.

    **What to do.** `torch.softmax(scores, -1, dtype=torch.float32)`, `scores.astype(jnp.float32)`,
    `force_fp32_for_softmax=True` of linen's attention.
    """

    name = "low-precision-softmax"
    rank = 0
    examples = (
        Example(
            _Truth,
            lambda twin: _Faulty(),
            normal(4, 32, scale=3.0),
            "computes the softmax in bfloat16",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield both dtypes of 16 bits."""
        for dtype in (torch.bfloat16, torch.float16):
            name = str(dtype).removeprefix("torch.")
            for where, change in scene.replaced(partial(_in, dtype)):
                yield Variant(f"{{side}} computes the softmax in {name}{where}", change)


def _in(dtype: torch.dtype) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        x, axis = call.args[0], call.get(1, "dim")
        with _disable_current_modes():
            return torch.softmax(x.to(dtype), axis).to(x.dtype)

    return {"softmax": handle}
