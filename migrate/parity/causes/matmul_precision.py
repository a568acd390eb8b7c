"""Matrix products of operands that are rounded to bfloat16."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, loaded, normal
from migrate.parity.causes.frame.rounding import rounded_to
from migrate.parity.causes.frame.scene import Scene

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
_BF16 = torch.bfloat16


def _truth() -> nn.Module:
    return nn.Linear(64, 16)


class _Faulty(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight.bfloat16().to(x.dtype)
        return nn.functional.linear(x.bfloat16().to(x.dtype), weight, self.bias)


class MatmulPrecision(Pattern):
    """Matrix products of operands that are rounded to bfloat16.

    **What it is.** A TPU multiplies float32 in one pass of bfloat16 by default: relative L2 of 2.4e-3.
    GPUs do alike with TF32, and autocast everywhere. The sums are kept in float32.

    **What to do.** `jax_default_matmul_precision="highest"` (or `precision=` of a layer),
    `torch_xla.backends.set_mat_mul_precision("highest")`; or compare with the profile `tpu-default`, if
    that is what is wanted.
    """

    name = "matmul-precision"
    rank = 0
    examples = (
        Example(
            _truth,
            lambda twin: loaded(_Faulty(64, 16), twin),
            normal(8, 64),
            "rounds the operands to bfloat16",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield products of rounded operands: to bfloat16, and to the 10 bits of TF32."""
        for words, narrow in (
            ("bfloat16", partial(rounded_to, dtype=_BF16)),
            ("TF32 (10 bits)", _tf32),
        ):
            for where, change in scene.replaced(partial(_rounded, narrow)):
                yield Variant(
                    f"{{side}} rounds the operands to {words} in matrix products{where}", change
                )


def _tf32(tensor: torch.Tensor) -> torch.Tensor:
    mantissa, exponent = torch.frexp(tensor)
    return torch.ldexp(torch.round(mantissa * 2**11) / 2**11, exponent)


def _rounded(narrow: Callable[[torch.Tensor], torch.Tensor]) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        if call.name == "einsum":
            operands = tuple(narrow(one) for one in call.args[1:] if torch.is_tensor(one))
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


def _attention(call: FunctionCall, narrow: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    q, k, v = call.args[:3]
    if call.get(7, "enable_gqa", False):
        k, v = (one.repeat_interleave(q.shape[-3] // one.shape[-3], -3) for one in (k, v))
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
