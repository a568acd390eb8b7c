"""Masks: left out, inverted, added as numbers, causal or not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import FaultExample, Pattern, Variant, loaded
from migrate.parity.causes.frame.scene import Scene

_ATTENTION = "scaled_dot_product_attention"


class _CausalMaskTruth(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)


class _CausalMaskFaulty(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x)


class _CausalMaskEager(nn.Module):
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


def _causal_mask_inputs() -> tuple[torch.Tensor, ...]:
    return (torch.randn(2, 6, 8, dtype=torch.float64),)


class CausalMask(Pattern):
    """The causal mask is missing, is there where none should be, or is off by one.

    **What it is.** `is_causal` was lost, or a mask is built by `triu` and `tril` with another diagonal: a
    token then sees the next one, or not itself. With a cache, torch's `is_causal` is aligned to the upper
    left corner, a decoder's to the lower right.

    **What to do.** `is_causal=True`, `nn.make_causal_mask` in linen; compare the masks themselves.
    """

    name = "causal-mask"
    examples = (
        FaultExample(
            _CausalMaskTruth,
            lambda twin: _CausalMaskFaulty(),
            _causal_mask_inputs,
            "attends to what comes later",
        ),
        FaultExample(_CausalMaskEager, lambda twin: _Shifted(), _causal_mask_inputs, "one later"),
        FaultExample(
            _Compared, lambda twin: _Shifted(), _causal_mask_inputs, "one later, by positions"
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield attention with and without the mask, and with other diagonals."""
        causal = any(call.get(5, "is_causal", False) for call in scene.calls(_ATTENTION))
        off = "{side} attends to what comes later, the truth does not"
        on = "{side} does not attend to what comes later, the truth does"
        for where, change in scene.replaced(partial(_causal_mask_attention, None if causal else 0)):
            yield Variant((off if causal else on) + where, change)
        for shift, words in ((1, "later"), (-1, "earlier")):
            for where, change in (
                scene.replaced(partial(_causal_mask_attention, shift)) if causal else ()
            ):
                yield Variant(f"{{side}}'s causal mask ends one {words}{where}", change)
            for where, change in scene.replaced(partial(_triangle, shift)):
                yield Variant(
                    f"{{side}}'s causal mask ends one {words}, by its triangle{where}", change
                )
            for where, change in scene.replaced(partial(_causal_mask_compared, shift)):
                yield Variant(
                    f"{{side}}'s causal mask ends one {words}, by positions{where}", change
                )
        for where, change in scene.replaced(lambda: {"softmax": _without_later}):
            yield Variant(on + where, change)


def _causal_mask_attention(shift: int | None) -> Mapping[str, Handler]:
    """Attention up to the diagonal plus `shift`; None: to all positions."""

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


def _causal_mask_compared(shift: int) -> Mapping[str, Handler]:
    """Compare positions of rows with positions of columns; `shift` more are attended to."""

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


class _MaskAddedTruth(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


class _MaskAddedFaulty(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask.to(x.dtype))


def _mask_added_inputs() -> tuple[torch.Tensor, ...]:
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
    examples = (
        FaultExample(
            _MaskAddedTruth, lambda twin: _MaskAddedFaulty(), _mask_added_inputs, "adds the mask"
        ),
    )

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
        if not call.args[0].any():  # this fills a mask, not scores
            return call.run()
        return call.args[0] + torch.where(mask, 1 - attended, attended).to(call.args[0].dtype)

    def where(call: FunctionCall) -> Any:
        if len(call.args) != 3 or not torch.is_tensor(call.args[1]):
            return call.run()
        mask, scores = call.args[:2]
        return scores + torch.where(mask, attended, 1 - attended).to(scores.dtype)

    return {"scaled_dot_product_attention": handle, "masked_fill": filled, "where": where}


class _MaskIgnoredFaulty(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x)


class _Mean(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        share = mask / mask.sum(-1, keepdim=True)
        return (x * share[..., None]).sum(1)


class _PlainMean(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x.mean(1)


class _MaskIgnoredAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, key_padding_mask=mask == 0)[0]


class _Unmasked(_MaskIgnoredAttention):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x)[0]


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
    examples = (
        FaultExample(
            _MaskAddedTruth,
            lambda twin: _MaskIgnoredFaulty(),
            _mask_added_inputs,
            "does not apply the mask",
        ),
        FaultExample(
            _MaskIgnoredAttention,
            lambda twin: loaded(_Unmasked(), twin),
            _padded,
            "does not apply the mask (key_padding_mask)",
            layer="attention",
        ),
        FaultExample(_Mean, lambda twin: _PlainMean(), _padded, "does not apply the mask"),
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
        for name, handler in _MASK_IGNORED_HANDLERS.items():
            for where, change in scene.replaced(partial(_only, name, handler)):
                yield Variant(f"{{side}} does not apply the mask of {name}{where}", change)


def _filled_at(wanted: str, value: int, path: str, tensor: torch.Tensor) -> torch.Tensor:
    return torch.full_like(tensor, value) if path == wanted else tensor


def _mask_ignored_attention(call: FunctionCall) -> Any:
    return call.run() if call.get(3, "attn_mask") is None else call.but(3, "attn_mask", None).run()


def _passed(call: FunctionCall) -> Any:
    return call.args[0].clone()


def _true(call: FunctionCall) -> Any:
    return torch.ones_like(call.run())


def _false(call: FunctionCall) -> Any:
    return torch.zeros_like(call.run())


_MASK_IGNORED_HANDLERS: Mapping[str, Handler] = {
    "scaled_dot_product_attention": _mask_ignored_attention,
    "masked_fill": _passed,
    # Comparisons that make a mask: ids != padding, positions < lengths.
    "ne": _true,
    "lt": _true,
    "gt": _true,
    "eq": _false,
}


def _only(name: str, handler: Handler) -> Mapping[str, Handler]:
    return {name: handler}


class _MaskPolarityTruth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: torch.Tensor, padded: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, key_padding_mask=padded)[0]


class _MaskPolarityFaulty(_MaskPolarityTruth):
    def forward(self, x: torch.Tensor, padded: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, key_padding_mask=~padded)[0]


def _faulty(twin: nn.Module) -> nn.Module:
    twin.__class__ = _MaskPolarityFaulty
    return twin


class _Direct(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


class _Inverted(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, attn_mask=~mask)


def _mask_polarity_inputs() -> tuple[torch.Tensor, ...]:
    lengths = torch.randint(2, 6, (3, 1))
    return torch.randn(3, 7, 16, dtype=torch.float64), torch.arange(7) >= lengths


class MaskPolarity(Pattern):
    """A mask of the opposite meaning.

    **What it is.** True in `key_padding_mask` and `attn_mask` of `nn.MultiheadAttention` means *ignore*;
    in `F.scaled_dot_product_attention`, in Flax's `mask=` and in Hugging Face's `attention_mask` it means
    *attend*.

    **What to do.** `~mask` at the border of the two.
    """

    name = "mask-polarity"
    examples = (
        FaultExample(
            _MaskPolarityTruth,
            _faulty,
            _mask_polarity_inputs,
            "has the opposite",
            layer="attention",
            locally=False,
        ),
        FaultExample(_Direct, lambda twin: _Inverted(), _mask_added_inputs, "has the opposite"),
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
        for name, handler in _MASK_POLARITY_HANDLERS.items():
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
    """Opposite of a mask: of True and False, of 1 and 0, of 0 and a large negative number."""
    if mask.dtype is torch.bool:
        return ~mask
    if not mask.is_floating_point():
        return 1 - mask
    return torch.where(
        mask < -1, 0.0, torch.finfo(mask.dtype).min if mask.min() > -1e300 else -torch.inf
    )


def _opposite(output: Any, _mine: Any) -> Any:
    flags = output.dtype.kind == "f" and set(output.reshape(-1)[:4096]) == {0.0, 1.0}
    return 1 - output if flags else None


def _mask_polarity_attention(call: FunctionCall) -> Any:
    mask = call.get(3, "attn_mask")
    return call.run() if mask is None else call.but(3, "attn_mask", inverted(mask)).run()


def _filled(call: FunctionCall) -> Any:
    return call.but(1, "mask", ~call.get(1, "mask")).run()


def _where(call: FunctionCall) -> Any:
    return call.but(0, "condition", ~call.args[0]).run() if len(call.args) == 3 else call.run()


def _mask_polarity_compared(call: FunctionCall) -> Any:
    return ~call.run()


_MASK_POLARITY_HANDLERS: Mapping[str, Handler] = {
    "scaled_dot_product_attention": _mask_polarity_attention,
    "masked_fill": _filled,
    "where": _where,
    **dict.fromkeys(("ne", "eq", "lt", "gt", "le", "ge"), _mask_polarity_compared),
}
