"""The variance divides by n - 1 instead of n."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall
from migrate.parity.causes.frame.norms import Moments, written_out
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, loaded, normal
from migrate.parity.causes.frame.scene import Scene


def _truth() -> nn.Module:
    return nn.LayerNorm(16)


class _Faulty(nn.LayerNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance = x.var(-1, keepdim=True)  # divides by n - 1
        return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(
            variance + self.eps
        ) * self.weight + self.bias


class UnbiasedVariance(Pattern):
    """The variance divides by n - 1 instead of n, or the reverse.

    **What it is.** `torch.var` and `torch.std` divide by n - 1, `jnp.var`, `np.var` and every norm layer
    by n. A norm that was written out in one and copied to the other is off by a factor of about 1 + 1 /
    2n.

    **What to do.** `x.var(-1, correction=0)` in torch, `jnp.var(x, -1, ddof=1)` in JAX.
    """

    name = "unbiased-variance"
    rank = 0
    examples = (
        Example(
            _truth,
            lambda twin: loaded(_Faulty(16), twin),
            normal(4, 16),
            "divides the variance by n - 1",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield norms with n - 1, and `var` and `std` with the other divisor."""
        for where, change in scene.replaced(lambda: written_out(_unbiased)):
            yield Variant(f"{{side}} divides the variance by n - 1, the truth by n{where}", change)
        for where, change in scene.replaced(lambda: dict.fromkeys(("var", "std"), _biased)):
            yield Variant(f"{{side}} divides the variance by n, the truth by n - 1{where}", change)


def _unbiased(moments: Moments) -> Any:
    variance = moments.variance * (moments.count / (moments.count - 1))
    return (moments.x - moments.mean) / torch.sqrt(variance + moments.eps)


def _biased(call: FunctionCall) -> Any:
    kwargs: Mapping[str, Any] = {
        key: v for key, v in call.kwargs.items() if key not in ("unbiased", "correction")
    }
    args = [one for one in call.args if not isinstance(one, bool)]
    return FunctionCall(call.name, call.function, tuple(args), {**kwargs, "correction": 0}).run()
