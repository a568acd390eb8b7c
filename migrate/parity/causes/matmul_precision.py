"""Matrix products of operands that are rounded to bfloat16."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import nn

from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, loaded, normal
from migrate.parity.causes.frame.products import rounded_products, to_bfloat16
from migrate.parity.causes.frame.scene import Scene


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
            ("bfloat16", to_bfloat16),
            ("TF32 (10 bits)", _tf32),
        ):
            for where, change in scene.replaced(partial(rounded_products, narrow)):
                yield Variant(
                    f"{{side}} rounds the operands to {words} in matrix products{where}", change
                )


def _tf32(tensor: torch.Tensor) -> torch.Tensor:
    mantissa, exponent = torch.frexp(tensor)
    return torch.ldexp(torch.round(mantissa * 2**11) / 2**11, exponent)
