"""Pairs of two torch models: the port is the same in other words, or by another kernel."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.parity.pairs.encoder import Causal, PreBlock, SelfAttention
from tests.parity.pairs.pair import Fault, Pair, ids, normal
from tests.parity.pairs.plain import LayerNormMlp
from tests.parity.pairs.vision import ConvBn


class FusedAttention(SelfAttention):
    """With torch's kernel."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, x: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        def heads(y: torch.Tensor) -> torch.Tensor:
            return y.view(*y.shape[:2], 3, -1).transpose(1, 2)

        q, k, v = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
        if self.fault == "additive-bool":  # a boolean mask added to the scores
            scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + allowed
            y = scores.softmax(-1) @ v
        else:
            mask = ~allowed if self.fault == "mask-polarity" else allowed
            if self.fault == "mask-polarity":  # the first row would see nothing
                mask = mask | torch.eye(len(mask), dtype=torch.bool, device=x.device)
            scale = 1.0 if self.fault == "scale-missing" else None
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        return self.out(y.transpose(1, 2).flatten(2))


def fused(fault: str) -> nn.Module:
    model = Causal()
    block: Any = PreBlock()
    block.attention = FusedAttention("")
    other: Any = PreBlock()
    other.attention = FusedAttention(fault)
    model.layer = nn.ModuleList([block, other])
    return model


FUSED = Pair(
    "torch_fused_attention",
    "torch",
    Causal,
    fused,
    lambda g: {"input_ids": ids(g, 23, 2, 9)},
    faults=(
        Fault(
            "mask-polarity",
            "scaled_dot_product_attention's True is allowed",
            "layer.1.attention",
            "mask-polarity",
        ),
        Fault(
            "additive-bool",
            "the boolean mask is added to the scores",
            "layer.1.attention",
            "mask-added",
        ),
        Fault("scale-missing", "scale=1.0 is passed", "layer.1.attention", "attention-scale"),
    ),
)


def other_norm(fault: str) -> nn.Module:
    model = LayerNormMlp()
    if fault == "layernorm-eps":
        model.block.norm.eps = 1e-6
    return model


SAME = Pair(
    "torch_same",
    "torch",
    LayerNormMlp,
    other_norm,
    lambda g: {"x": normal(g, 6, 5, scale=0.4)},
    faults=(Fault("layernorm-eps", "another epsilon", "block.norm", "norm-eps"),),
)


class ChannelsLastConvBn(ConvBn):
    """The same with the memory of its images the other way round."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.contiguous(memory_format=torch.channels_last))


class BatchNormOn(ConvBn):
    """Whoever calls .train() on the whole model forgets that its BatchNorm was frozen."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.bn2.training = True
        self.bn2.momentum = 0.0
        return super().forward(x)


CHANNELS_LAST = Pair(
    "torch_channels_last",
    "torch",
    ConvBn,
    lambda fault: BatchNormOn() if fault else ChannelsLastConvBn(),
    lambda g: {"x": normal(g, 4, 3, 8, 6)},
    faults=(
        Fault("batchnorm-training", "a BatchNorm in training mode", "bn2", "batch-statistics"),
    ),
)

PAIRS = (FUSED, SAME, CHANNELS_LAST)
