"""Matrix products of rounded operands, as in a TPU's single pass of bfloat16."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.rounding import rounded_to

Narrow = Callable[[torch.Tensor], torch.Tensor]
_PRODUCTS = (
    "linear",
    "matmul",
    "bmm",
    "mm",
    "addmm",
    "baddbmm",
    "conv1d",
    "conv2d",
    "conv3d",
    "einsum",
)
_ATTENTION = "scaled_dot_product_attention"


def to_bfloat16(tensor: torch.Tensor) -> torch.Tensor:
    """Round to the nearest number of bfloat16."""
    return rounded_to(tensor, torch.bfloat16)


def rounded_products(narrow: Narrow) -> Mapping[str, Handler]:
    """Return handlers that round both operands of every product."""

    def handle(call: FunctionCall) -> Any:
        if call.name == "einsum":
            operands = tuple(
                narrow(operand) for operand in call.args[1:] if torch.is_tensor(operand)
            )
            return (
                call.function(call.args[0], *operands)
                if len(operands) == len(call.args) - 1
                else call.run()
            )
        first = 1 if call.name in ("addmm", "baddbmm") else 0
        a, b = call.args[first], call.get(first + 1, "weight")
        return call.but(first, "input", narrow(a)).but(first + 1, "weight", narrow(b)).run()

    def attend(call: FunctionCall) -> Any:
        return _attention(call, narrow)

    return {**dict.fromkeys(_PRODUCTS, handle), _ATTENTION: attend}


def _attention(call: FunctionCall, narrow: Narrow) -> Any:
    q, k, v = call.args[:3]
    if call.get(7, "enable_gqa", False):
        k, v = (tensor.repeat_interleave(q.shape[-3] // tensor.shape[-3], -3) for tensor in (k, v))
    scale = call.kwargs.get("scale") or 1 / math.sqrt(q.shape[-1])
    scores = narrow(q) @ narrow(k).mT * scale
    mask = call.get(3, "attn_mask")
    if call.get(5, "is_causal", False):
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None:
        scores = (
            scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else scores + mask
        )
    return narrow(scores.softmax(-1)) @ narrow(v)
