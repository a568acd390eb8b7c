"""Another scale of the attention scores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant
from migrate.parity.causes.frame.scene import Scene

_ATTENTION = "scaled_dot_product_attention"


class _Truth(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class _Faulty(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (q @ k.mT).softmax(-1) @ v


class _Eager(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v


def _inputs() -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(2, 3, 6, 16, dtype=torch.float64) for _ in range(3))


class AttentionScale(Pattern):
    """Another scale of the attention scores.

    **What it is.** The scores are divided by the root of the head's size, by the root of the model's
    size, or not at all (T5, or where the scale is folded into the query's weights). Gemma has
    `query_pre_attn_scalar`; linen's `dot_product_attention` always divides by the root of the head's
    size.

    **What to do.** `F.scaled_dot_product_attention(..., scale=s)`; in JAX multiply the query by s times
    the root that is divided by.
    """

    name = "attention-scale"
    rank = 0
    examples = (
        Example(
            _Truth, lambda twin: _Faulty(), _inputs, "scales the scores by 1, the truth by 0.25"
        ),
        Example(_Eager, lambda twin: _Faulty(), _inputs, "has 4 times the scores"),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the usual scales, by the sizes that the layer has."""
        for call in scene.calls(_ATTENTION)[:1]:
            heads, size = call.args[0].shape[-3], call.args[0].shape[-1]
            old = call.kwargs.get("scale") or size**-0.5
            for new in sorted(
                {1.0, size**-0.5, 1 / size, (heads * size) ** -0.5, size**0.5, size**-0.25}
            ):
                for where, change in scene.replaced(partial(_scaled, new)):
                    yield Variant(
                        f"{{side}} scales the scores by {new:.4g}, the truth by {old:.4g}{where}",
                        change,
                    )
        if scene.calls("softmax") and scene.calls("matmul", "bmm", "baddbmm", "einsum"):
            for times in _factors(scene):
                for where, change in scene.replaced(partial(_scores, times)):
                    yield Variant(
                        f"{{side}} has {times:.4g} times the scores of the truth{where}", change
                    )


def _factors(scene: Scene) -> list[float]:
    sizes = {
        call.args[0].shape[-1] for call in scene.calls("matmul", "bmm") if call.args[0].ndim >= 3
    }
    sizes |= {call.args[1].shape[-1] for call in scene.calls("baddbmm")}
    roots = {math.sqrt(size) for size in sizes if size > 1}
    return sorted({factor for root in roots for factor in (root, 1 / root, root**0.5, root**-0.5)})


def _scaled(scale: float) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        return call.but(6, "scale", scale).run()

    return {_ATTENTION: handle}


def _scores(times: float) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        return call.but(0, "input", call.args[0] * times).run()

    return {"softmax": handle}
