"""A mask that is not applied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, loaded
from migrate.parity.causes.frame.scene import Scene


class _Truth(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


class _Faulty(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x)


class _Mean(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        share = mask / mask.sum(-1, keepdim=True)
        return (x * share[..., None]).sum(1)


class _PlainMean(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x.mean(1)


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, key_padding_mask=mask == 0)[0]


class _Unmasked(_Attention):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x)[0]


def _inputs() -> tuple[torch.Tensor, ...]:
    mask = torch.rand(7, 7) < 0.5
    mask[:, 0], mask[:, 1] = True, False
    return torch.randn(2, 7, 8, dtype=torch.float64), mask


def _padded() -> tuple[torch.Tensor, ...]:
    lengths = torch.randint(2, 6, (3, 1))
    return torch.randn(3, 7, 16, dtype=torch.float64), (torch.arange(7) < lengths).long()


class MaskIgnored(Pattern):
    """A mask that is not applied.

    **What it is.** Padding takes part in attention or in a mean over tokens: the mask is not handed on,
    or a fast kernel does not take it. With inputs of equal lengths nothing is seen.

    **What to do.** Hand the mask on to each attention, and to the pooling.
    """

    name = "mask-ignored"
    rank = 0
    examples = (
        Example(_Truth, lambda twin: _Faulty(), _inputs, "does not apply the mask"),
        Example(
            _Attention,
            lambda twin: loaded(_Unmasked(), twin),
            _padded,
            "does not apply the mask (key_padding_mask)",
            layer="attention",
        ),
        Example(_Mean, lambda twin: _PlainMean(), _padded, "does not apply the mask"),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield masks of ones: arguments of the layer, and of the functions that it calls."""
        for path, tensor in scene.given():
            flags = tensor.dtype is torch.bool or (
                not tensor.is_floating_point() and bool(((tensor == 0) | (tensor == 1)).all())
            )
            for value in (1, 0) if flags else ():
                text = (
                    f"{{side}} does not apply the mask ({path}): as if it were {value} everywhere"
                )
                yield Variant(text, partial(scene.replay.fed, partial(_filled_at, path, value)))
        for name, handler in _HANDLERS.items():
            for where, change in scene.replaced(partial(_only, name, handler)):
                yield Variant(f"{{side}} does not apply the mask of {name}{where}", change)


def _filled_at(wanted: str, value: int, path: str, tensor: torch.Tensor) -> torch.Tensor:
    return torch.full_like(tensor, value) if path == wanted else tensor


def _attention(call: FunctionCall) -> Any:
    return call.run() if call.get(3, "attn_mask") is None else call.but(3, "attn_mask", None).run()


def _passed(call: FunctionCall) -> Any:
    return call.args[0].clone()


def _true(call: FunctionCall) -> Any:
    return torch.ones_like(call.run())


def _false(call: FunctionCall) -> Any:
    return torch.zeros_like(call.run())


_HANDLERS: Mapping[str, Handler] = {
    "scaled_dot_product_attention": _attention,
    "masked_fill": _passed,
    # Comparisons that make a mask: ids != padding, positions < lengths.
    "ne": _true,
    "lt": _true,
    "gt": _true,
    "eq": _false,
}


def _only(name: str, handler: Handler) -> Mapping[str, Handler]:
    return {name: handler}
