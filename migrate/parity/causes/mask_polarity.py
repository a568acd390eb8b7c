"""A mask of the opposite meaning."""

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
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: torch.Tensor, padded: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, key_padding_mask=padded)[0]


class _Faulty(_Truth):
    def forward(self, x: torch.Tensor, padded: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, key_padding_mask=~padded)[0]


def _faulty(twin: nn.Module) -> nn.Module:
    twin.__class__ = _Faulty
    return twin


class _Direct(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


class _Inverted(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, attn_mask=~mask)


def _inputs() -> tuple[torch.Tensor, ...]:
    lengths = torch.randint(2, 6, (3, 1))
    return torch.randn(3, 7, 16, dtype=torch.float64), torch.arange(7) >= lengths


def _masked() -> tuple[torch.Tensor, ...]:
    mask = torch.rand(7, 7) < 0.5
    mask[:, 0], mask[:, 1] = True, False
    return torch.randn(2, 7, 8, dtype=torch.float64), mask


class MaskPolarity(Pattern):
    """A mask of the opposite meaning.

    **What it is.** True in `key_padding_mask` and `attn_mask` of `nn.MultiheadAttention` means *ignore*;
    in `F.scaled_dot_product_attention`, in Flax's `mask=` and in Hugging Face's `attention_mask` it means
    *attend*.

    **What to do.** `~mask` at the border of the two.
    """

    name = "mask-polarity"
    rank = 0
    examples = (
        Example(_Truth, _faulty, _inputs, "has the opposite", layer="attention", locally=False),
        Example(_Direct, lambda twin: _Inverted(), _masked, "has the opposite"),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield inverted masks: arguments of the layer, and of the functions that it calls."""
        for path, tensor in scene.given():
            if _is_mask(tensor):
                text = f"the mask ({path}) has the opposite meaning in {{side}}"
                yield Variant(text, partial(scene.replay.fed, partial(_inverted_at, path, False)))
                if (
                    tensor.dtype is torch.bool
                    and tensor.ndim >= 2
                    and len(set(tensor.shape[-2:])) == 1
                ):
                    inverted_there = partial(_inverted_at, path, True)
                    words = f"{text}, but for the diagonal"
                    yield Variant(words, partial(scene.replay.fed, inverted_there))
        yield Variant("the mask that {side} gives has the opposite meaning", adjust=_opposite)
        for name, handler in _HANDLERS.items():
            for where, change in scene.replaced(partial(_only, name, handler)):
                yield Variant(
                    f"the mask of {name} has the opposite meaning in {{side}}{where}", change
                )


def _is_mask(tensor: torch.Tensor) -> bool:
    return tensor.dtype is torch.bool or (
        not tensor.is_floating_point() and bool(((tensor == 0) | (tensor == 1)).all())
    )


def _inverted_at(wanted: str, diagonal: bool, path: str, tensor: torch.Tensor) -> torch.Tensor:
    if path != wanted:
        return tensor
    other = inverted(tensor)
    return other | torch.eye(other.shape[-1], dtype=torch.bool) if diagonal else other


def inverted(mask: torch.Tensor) -> torch.Tensor:
    """The opposite of a mask: of True and False, of 1 and 0, of 0 and what is added to be ignored."""
    if mask.dtype is torch.bool:
        return ~mask
    if not mask.is_floating_point():
        return 1 - mask
    return torch.where(
        mask < -1, 0.0, torch.finfo(mask.dtype).min if mask.min() > -1e300 else -torch.inf
    )


def _opposite(given: Any, _mine: Any) -> Any:
    flags = given.dtype.kind == "f" and set(given.reshape(-1)[:4096]) == {0.0, 1.0}
    return 1 - given if flags else None


def _attention(call: FunctionCall) -> Any:
    mask = call.get(3, "attn_mask")
    return call.run() if mask is None else call.but(3, "attn_mask", inverted(mask)).run()


def _filled(call: FunctionCall) -> Any:
    return call.but(1, "mask", ~call.get(1, "mask")).run()


def _where(call: FunctionCall) -> Any:
    return call.but(0, "condition", ~call.args[0]).run() if len(call.args) == 3 else call.run()


def _compared(call: FunctionCall) -> Any:
    return ~call.run()


_HANDLERS: Mapping[str, Handler] = {
    "scaled_dot_product_attention": _attention,
    "masked_fill": _filled,
    "where": _where,
    **dict.fromkeys(("ne", "eq", "lt", "gt", "le", "ge"), _compared),
}


def _only(name: str, handler: Handler) -> Mapping[str, Handler]:
    return {name: handler}
