"""Attention to what comes later, or not."""

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

_ATTENTION = "scaled_dot_product_attention"


class _Truth(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)


class _Faulty(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x)


class _Eager(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        allowed = torch.tril(torch.ones(6, 6, dtype=torch.bool))
        return (x @ x.mT).masked_fill(~allowed, -torch.inf).softmax(-1) @ x


class _Compared(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(6)
        allowed = places[:, None] >= places[None, :]
        return (x @ x.mT).masked_fill(~allowed, -torch.inf).softmax(-1) @ x


class _Shifted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        allowed = torch.tril(torch.ones(6, 6, dtype=torch.bool), diagonal=1)
        return (x @ x.mT).masked_fill(~allowed, -torch.inf).softmax(-1) @ x


def _inputs() -> tuple[torch.Tensor, ...]:
    return (torch.randn(2, 6, 8, dtype=torch.float64),)


class CausalMask(Pattern):
    """The causal mask is missing, is there where none should be, or is off by one.

    **What it is.** `is_causal` was lost, or a mask is built by `triu` and `tril` with another diagonal: a
    token then sees the next one, or not itself. With a cache, torch's `is_causal` is aligned to the upper
    left corner, a decoder's to the lower right.

    **What to do.** `is_causal=True`, `nn.make_causal_mask` in linen; compare the masks themselves.
    """

    name = "causal-mask"
    rank = 0
    examples = (
        Example(_Truth, lambda twin: _Faulty(), _inputs, "attends to what comes later"),
        Example(_Eager, lambda twin: _Shifted(), _inputs, "one later"),
        Example(_Compared, lambda twin: _Shifted(), _inputs, "one later, by positions"),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield attention with and without the mask, and with other diagonals."""
        causal = any(call.get(5, "is_causal", False) for call in scene.calls(_ATTENTION))
        off = "{side} attends to what comes later, the truth does not"
        on = "{side} does not attend to what comes later, the truth does"
        for where, change in scene.replaced(partial(_attention, None if causal else 0)):
            yield Variant((off if causal else on) + where, change)
        for shift, words in ((1, "later"), (-1, "earlier")):
            for where, change in scene.replaced(partial(_attention, shift)) if causal else ():
                yield Variant(f"{{side}}'s causal mask ends one {words}{where}", change)
            for where, change in scene.replaced(partial(_triangle, shift)):
                yield Variant(
                    f"{{side}}'s causal mask ends one {words}, by its triangle{where}", change
                )
            for where, change in scene.replaced(partial(_compared, shift)):
                yield Variant(
                    f"{{side}}'s causal mask ends one {words}, by positions{where}", change
                )
        for where, change in scene.replaced(lambda: {"softmax": _without_later}):
            yield Variant(on + where, change)


def _attention(shift: int | None) -> Mapping[str, Handler]:
    """Attention up to the diagonal and so far beyond it; None: to all."""

    def handle(call: FunctionCall) -> Any:
        rows, columns = call.args[0].shape[-2], call.args[1].shape[-2]
        plain = call.but(5, "is_causal", False)
        if shift is None:
            return plain.run()
        allowed = torch.ones(rows, columns, dtype=torch.bool).tril(shift)
        mask = call.get(3, "attn_mask")
        if mask is not None:
            allowed = (
                mask & allowed
                if mask.dtype is torch.bool
                else torch.where(allowed, mask, -torch.inf)
            )
        return plain.but(3, "attn_mask", allowed).run()

    return {_ATTENTION: handle}


def _triangle(shift: int) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        return call.but(1, "diagonal", call.get(1, "diagonal", 0) + shift).run()

    return {"tril": handle, "triu": handle}


def _compared(shift: int) -> Mapping[str, Handler]:
    """Positions of rows that are compared with those of columns; `shift` more are attended to."""

    def handle(call: FunctionCall) -> Any:
        a, b = call.args[0], call.get(1, "other")
        if not torch.is_tensor(b) or a.is_floating_point() or a.ndim < 2:
            return call.run()
        rows_first = a.shape[-1] == 1
        more = shift if rows_first == (call.name in ("ge", "gt")) else -shift
        return call.but(0, "input", a + more).run()

    return dict.fromkeys(("ge", "gt", "le", "lt"), handle)


def _without_later(call: FunctionCall) -> Any:
    scores = call.args[0]
    allowed = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return call.but(0, "input", scores.masked_fill(~allowed, -torch.inf)).run()
