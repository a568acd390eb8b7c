"""Logits or scores that are capped by tanh, or not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import Array, Example, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Scene


class _Truth(nn.Module):
    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return torch.tanh(logits / 30.0) * 30.0


class _Faulty(nn.Module):
    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.clone()


class SoftCap(Pattern):
    """Logits or scores that are capped by tanh, or not.

    **What it is.** Gemma 2 and Grok pass their logits through `c · tanh(x / c)`, with c = 30, and the
    scores of attention with c = 50. Fast attention kernels leave it out.

    **What to do.** `final_logit_softcapping` and `attn_logit_softcapping` of the configuration.
    """

    name = "soft-cap"
    rank = 0
    examples = (
        Example(_Truth, lambda twin: _Faulty(), normal(4, 16, scale=20.0), "does not cap"),
        Example(_Faulty, lambda twin: _Truth(), normal(4, 16, scale=20.0), "caps them at 30"),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield caps that are left out, where the truth divides before a tanh, and added ones."""
        if scene.calls("div") and scene.calls("tanh"):
            for where, change in scene.replaced(_left_out, each=False):
                yield Variant(f"{{side}} does not cap by tanh, the truth does{where}", change)
        for cap in (30.0, 50.0, 20.0, 10.0):
            words = f"{{side}} caps them at {cap:g} by tanh, the truth does not"
            yield Variant(words, adjust=partial(_capped, cap))
            for where, change in scene.replaced(partial(_scores, cap)):
                yield Variant(f"{words} (scores){where}", change)


def _left_out() -> Mapping[str, Handler]:
    divided: list[Any] = []

    def div(call: FunctionCall) -> Any:
        value = call.run()
        if isinstance(call.get(1, "other"), int | float):
            divided.append(value)
        return value

    def tanh(call: FunctionCall) -> Any:
        return call.args[0] if any(one is call.args[0] for one in divided) else call.run()

    return {"div": div, "tanh": tanh}


def _capped(cap: float, given: Array, _mine: Array) -> Array:
    return cap * np.tanh(given / cap)


def _scores(cap: float) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        return call.but(0, "input", cap * torch.tanh(call.args[0] / cap)).run()

    return {"softmax": handle}
