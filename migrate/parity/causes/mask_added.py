"""A mask of True and False that is added to the scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant
from migrate.parity.causes.frame.scene import Scene


class _Truth(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


class _Faulty(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask.to(x.dtype))


def _inputs() -> tuple[torch.Tensor, ...]:
    mask = torch.rand(7, 7) < 0.5
    mask[:, 0], mask[:, 1] = True, False
    return torch.randn(2, 7, 8, dtype=torch.float64), mask


class MaskAdded(Pattern):
    """A mask of ones and zeros is added to the scores.

    **What it is.** An attention that takes a bias (`bias=` of linen's, a floating `attn_mask` of torch's)
    is given a mask of ones and zeros: the scores change by one, and nothing is masked.

    **What to do.** Give `mask=` a boolean, or turn it into a bias: `jnp.where(mask, 0, -jnp.inf)`.
    """

    name = "mask-added"
    rank = 0
    examples = (Example(_Truth, lambda twin: _Faulty(), _inputs, "adds the mask"),)

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield attention with the mask as numbers."""
        for value, words in ((1.0, "ones where it attends"), (0.0, "ones where it does not")):
            for where, change in scene.replaced(partial(_handlers, value)):
                yield Variant(f"{{side}} adds the mask to the scores as {words}{where}", change)


def _handlers(attended: float) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        mask = call.get(3, "attn_mask")
        if mask is None:
            return call.run()
        attends = mask if mask.dtype is torch.bool else mask > -1
        bias = torch.where(attends, attended, 1 - attended).to(call.args[0].dtype)
        return call.but(3, "attn_mask", bias).run()

    def filled(call: FunctionCall) -> Any:
        mask = call.get(1, "mask")
        if not call.args[0].any():  # a mask is made, no scores are masked
            return call.run()
        return call.args[0] + torch.where(mask, 1 - attended, attended).to(call.args[0].dtype)

    def where(call: FunctionCall) -> Any:
        if len(call.args) != 3 or not torch.is_tensor(call.args[1]):
            return call.run()
        mask, scores = call.args[:2]
        return scores + torch.where(mask, attended, 1 - attended).to(scores.dtype)

    return {"scaled_dot_product_attention": handle, "masked_fill": filled, "where": where}
