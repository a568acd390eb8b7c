"""Query, key and value of one kernel in another order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import permutations
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.changes import several, weight
from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Part, Scene

_ORDERS = list(permutations(range(3)))[1:]


def _truth() -> nn.Module:
    return nn.Linear(8, 48)  # query, key, value of 4 heads of 4


def _faulty(twin: nn.Module) -> nn.Module:
    for one in (twin.weight, twin.bias):
        rows = one.data.reshape(3, 4, 4, -1).transpose(0, 1)  # a head's query, key, value together
        one.data = rows.reshape(one.shape)
    return twin


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


def _exchanged(twin: nn.Module) -> nn.Module:
    q, k, v = twin.attention.in_proj_weight.data.chunk(3)
    twin.attention.in_proj_weight.data = torch.cat([k, q, v])
    return twin


class QkvLayout(Pattern):
    """Query, key and value, which one kernel holds, are in another order.

    **What it is.** A fused projection holds first all of the query, then the key, then the value (GPT-2,
    `nn.MultiheadAttention`); or each head's query, key and value together (GPT-NeoX, BLOOM, Falcon). Both
    have the same shape.

    **What to do.** Reorder its rows when it is converted: `w.reshape(heads, 3, size, -1).swapaxes(0, 1)`.
    """

    name = "qkv-layout"
    rank = 1
    examples = (
        Example(_truth, _faulty, normal(4, 8), "by 4 heads"),
        Example(_Attention, _exchanged, normal(2, 5, 8), "key, query, value", layer="attention"),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield all orders of the thirds, and by head for all numbers of heads."""
        for order in _ORDERS:
            words = ", ".join(("query", "key", "value")[n] for n in order)
            for where, change in scene.replaced(partial(_splits, order)):
                yield Variant(f"{{side}} takes the three parts as {words}{where}", change)
        for part, names in _fused(scene):
            for order in _ORDERS:
                words = ", ".join(("query", "key", "value")[n] for n in order)
                change = partial(_reordered, part, names, partial(_thirds, order))
                yield Variant(f"{part.name} holds {words} in {{side}}, in this order", change)
            rows = getattr(part.module, names[0]).shape[0] // 3
            for heads in (n for n in range(2, min(rows, 128)) if rows % n == 0):
                for back, words in ((False, "by"), (True, "not by")):
                    change = partial(_reordered, part, names, partial(_by_head, heads, back))
                    text = f"{part.name} holds query, key, value together {words} {heads} heads in {{side}}"
                    yield Variant(text, change)


def _splits(order: tuple[int, ...]) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        parts = list(call.run())
        if len(parts) == 3 and parts[0].shape == parts[1].shape == parts[2].shape:
            parts = [parts[n] for n in order]
        return iter(parts) if call.name == "iter" else tuple(parts)

    return dict.fromkeys(("chunk", "split", "unbind", "tensor_split", "iter"), handle)


def _fused(scene: Scene) -> Iterable[tuple[Part, list[str]]]:
    for part in scene.parts:
        names = (
            ["in_proj_weight"] if getattr(part.module, "in_proj_weight", None) is not None else []
        )
        if isinstance(part.module, nn.Linear) and part.module.out_features % 3 == 0:
            names = ["weight"]
        if names:
            bias = names[0].replace("weight", "bias")
            yield part, [*names, *([bias] if getattr(part.module, bias, None) is not None else [])]


def _reordered(part: Part, names: list[str], change: Any) -> Any:
    return several(weight(part.module, name, change) for name in names)


def _thirds(order: tuple[int, ...], tensor: torch.Tensor) -> Any:
    parts = tensor.chunk(3)
    return torch.cat([parts[n] for n in order])


def _by_head(heads: int, back: bool, tensor: torch.Tensor) -> Any:
    shape = (heads, 3) if back else (3, heads)
    size = tensor.shape[0] // (3 * heads)
    return tensor.reshape(*shape, size, -1).transpose(0, 1).reshape(tensor.shape)
