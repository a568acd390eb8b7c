"""Attention: the scale of its scores, how heads lie and what they share."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import permutations
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from migrate.parity.causes.frame.changes import attribute, several, weight
from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import FaultExample, Pattern, Variant, loaded, normal
from migrate.parity.causes.frame.scene import Scene, ScenePart

_ATTENTION = "scaled_dot_product_attention"


class _AttentionScaleTruth(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class _AttentionScaleFaulty(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (q @ k.mT).softmax(-1) @ v


class _AttentionScaleEager(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v


def _attention_scale_inputs() -> tuple[torch.Tensor, ...]:
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
    examples = (
        FaultExample(
            _AttentionScaleTruth,
            lambda twin: _AttentionScaleFaulty(),
            _attention_scale_inputs,
            "scales the scores by 1, the truth by 0.25",
        ),
        FaultExample(
            _AttentionScaleEager,
            lambda twin: _AttentionScaleFaulty(),
            _attention_scale_inputs,
            "has 4 times the scores",
        ),
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


_SPLITS = ("view", "reshape", "unflatten")


def _head_layout_truth() -> nn.Module:
    return nn.Linear(8, 24)  # 4 heads of 6


def _head_layout_faulty(twin: nn.Module) -> nn.Module:
    for tensor in (twin.weight, twin.bias):
        tensor.data = tensor.data.reshape(4, 6, -1).transpose(0, 1).reshape(tensor.shape)
    return twin


class _Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.out = nn.Linear(8, 24), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.query(x).view(-1, 4, 6))


class _Features(_Heads):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.query(x).view(-1, 6, 4).transpose(1, 2))


class HeadLayout(Pattern):
    """The features of the heads lie in another order.

    **What it is.** A projection has heads × size features: head by head in torch, where a kernel (in,
    heads, size) of Flax's attention was reshaped as (in, size, heads) every n-th feature is of the same
    head. The output's projection has the same on its input.

    **What to do.** Reshape to (heads, size), not (size, heads).
    """

    name = "head-layout"
    rank = 2
    examples = (
        FaultExample(_head_layout_truth, _head_layout_faulty, normal(4, 8), "of 4 heads"),
        FaultExample(
            _Heads,
            lambda twin: loaded(_Features(), twin),
            normal(4, 8),
            "splits into (features, heads)",
            layer="out",
            locally=False,
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield rows, and columns, in the other order, for all numbers of heads."""
        for where, change in scene.replaced(lambda: dict.fromkeys(_SPLITS, _split)):
            text = (
                f"{{side}} splits into (features, heads), the truth into (heads, features){where}"
            )
            yield Variant(text, change)
        for parts in scene.groups(lambda module: isinstance(module, nn.Linear)):
            if len(parts) > 1:
                continue
            for axis, words in ((0, "output"), (1, "input")):
                count = parts[0].module.weight.shape[axis]
                for heads in (n for n in range(2, count) if count % n == 0):
                    text = f"the {words} features of {parts[0].name} lie feature by feature of {heads} heads"
                    yield Variant(
                        f"{text} in {{side}}",
                        partial(_head_layout_reordered, parts[0], axis, heads),
                    )


def _split(call: FunctionCall) -> Any:
    """Cut the last axis in two, in the other order."""
    x, result = call.args[0], call.run()
    cut = result.ndim >= 3 and x.shape[-1:] == (result.shape[-2] * result.shape[-1],)
    if not cut or result.shape[-2] == 1:
        return result
    heads, size = result.shape[-2:]
    return x.reshape(*result.shape[:-2], size, heads).transpose(-1, -2)


def _head_layout_reordered(part: ScenePart, axis: int, heads: int) -> Any:
    names = ["weight"] if axis or part.module.bias is None else ["weight", "bias"]
    return several(weight(part.module, name, partial(_moved, axis, heads)) for name in names)


def _moved(axis: int, heads: int, tensor: torch.Tensor) -> Any:
    tensor = tensor.movedim(axis, 0)
    moved = tensor.reshape(heads, tensor.shape[0] // heads, *tensor.shape[1:]).transpose(0, 1)
    return moved.reshape(tensor.shape).movedim(0, axis)


class _KvRepeatTruth(nn.Module):
    def forward(self, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        kv = kv.repeat_interleave(2, dim=1)
        return F.scaled_dot_product_attention(q, kv, kv)


class _KvRepeatFaulty(nn.Module):
    def forward(self, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        kv = kv.repeat(1, 2, 1, 1)
        return F.scaled_dot_product_attention(q, kv, kv)


def _kv_repeat_inputs() -> tuple[torch.Tensor, ...]:
    q, kv = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8)
    return q.double(), kv.double()


class KvRepeat(Pattern):
    """Other query heads share a key head.

    **What it is.** With grouped queries each key head serves several query heads: neighbors (Llama:
    `repeat_interleave`, `jnp.repeat`), or every n-th (`repeat`, `jnp.tile`, which look the same by
    shape).

    **What to do.** `jnp.repeat(k, n, axis=heads)`, not `jnp.tile`.
    """

    name = "kv-repeat"
    examples = (
        FaultExample(
            _KvRepeatTruth,
            lambda twin: _KvRepeatFaulty(),
            _kv_repeat_inputs,
            "shares its keys among every n-th head",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the other repetition: of `repeat_interleave`, of attention, of a function `repeat_kv`."""
        text = "{side} shares its keys among every n-th head, the truth among neighbors"
        for where, change in scene.replaced(lambda: {"repeat_interleave": _tiled}):
            yield Variant(text + where, change)
        for where, change in scene.replaced(_grouped):
            yield Variant(f"{text}, in attention{where}", change)
        for module in _with_function(scene):
            yield Variant(
                f"{text}, in repeat_kv", partial(attribute, module, "repeat_kv", _repeat_kv)
            )


def _tiled(call: FunctionCall) -> Any:
    times, axis = call.get(1, "repeats"), call.get(2, "dim")
    if not isinstance(times, int) or axis is None:
        return call.run()
    return torch.cat([call.args[0]] * times, axis)


def _grouped() -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        q, k, v = call.args[:3]
        times = q.shape[-3] // k.shape[-3]
        if not call.get(7, "enable_gqa", False) or times < 2:
            return call.run()
        k, v = (torch.cat([tensor] * times, -3) for tensor in (k, v))
        return call.but(1, "key", k).but(2, "value", v).but(7, "enable_gqa", False).run()

    return {"scaled_dot_product_attention": handle}


def _with_function(scene: Scene) -> Iterator[Any]:
    names = {type(part.module).__module__ for part in scene.parts}
    has_repeat_kv: Callable[[Any], bool] = lambda module: hasattr(module, "repeat_kv")  # noqa: E731
    yield from filter(has_repeat_kv, (sys.modules[name] for name in sorted(names)))


def _repeat_kv(hidden_states: torch.Tensor, n_rep: int) -> torch.Tensor:
    return torch.cat([hidden_states] * n_rep, 1)


_ORDERS = list(permutations(range(3)))[1:]


def _qkv_layout_truth() -> nn.Module:
    return nn.Linear(8, 48)  # query, key, value of 4 heads of 4


def _qkv_layout_faulty(twin: nn.Module) -> nn.Module:
    for tensor in (twin.weight, twin.bias):
        rows = tensor.data.reshape(3, 4, 4, -1).transpose(0, 1)  # query, key, value of a head
        tensor.data = rows.reshape(tensor.shape)
    return twin


class _QkvLayoutAttention(nn.Module):
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
        FaultExample(_qkv_layout_truth, _qkv_layout_faulty, normal(4, 8), "by 4 heads"),
        FaultExample(
            _QkvLayoutAttention, _exchanged, normal(2, 5, 8), "key, query, value", layer="attention"
        ),
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
                change = partial(_qkv_layout_reordered, part, names, partial(_thirds, order))
                yield Variant(f"{part.name} holds {words} in {{side}}, in this order", change)
            rows = getattr(part.module, names[0]).shape[0] // 3
            for heads in (n for n in range(2, min(rows, 128)) if rows % n == 0):
                for back, words in ((False, "by"), (True, "not by")):
                    change = partial(
                        _qkv_layout_reordered, part, names, partial(_by_head, heads, back)
                    )
                    text = f"{part.name} holds query, key, value together {words} {heads} heads in {{side}}"
                    yield Variant(text, change)


def _splits(order: tuple[int, ...]) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        parts = list(call.run())
        if len(parts) == 3 and parts[0].shape == parts[1].shape == parts[2].shape:
            parts = [parts[n] for n in order]
        return iter(parts) if call.name == "iter" else tuple(parts)

    return dict.fromkeys(("chunk", "split", "unbind", "tensor_split", "iter"), handle)


def _fused(scene: Scene) -> Iterable[tuple[ScenePart, list[str]]]:
    for part in scene.parts:
        names = (
            ["in_proj_weight"] if getattr(part.module, "in_proj_weight", None) is not None else []
        )
        if isinstance(part.module, nn.Linear) and part.module.out_features % 3 == 0:
            names = ["weight"]
        if names:
            bias = names[0].replace("weight", "bias")
            yield part, [*names, *([bias] if getattr(part.module, bias, None) is not None else [])]


def _qkv_layout_reordered(part: ScenePart, names: list[str], change: Any) -> Any:
    return several(weight(part.module, name, change) for name in names)


def _thirds(order: tuple[int, ...], tensor: torch.Tensor) -> Any:
    parts = tensor.chunk(3)
    return torch.cat([parts[n] for n in order])


def _by_head(heads: int, back: bool, tensor: torch.Tensor) -> Any:
    shape = (heads, 3) if back else (3, heads)
    size = tensor.shape[0] // (3 * heads)
    return tensor.reshape(*shape, size, -1).transpose(0, 1).reshape(tensor.shape)
