"""Another eps in a normalisation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.norms import NORMS, eps_of, with_eps
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Scene

_USUAL = (1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
_NAMES = ("eps", "epsilon", "variance_epsilon", "layer_norm_eps", "rms_norm_eps")


def _truth() -> nn.Module:
    return nn.LayerNorm(16, eps=1e-5)


def _faulty(twin: nn.Module) -> nn.Module:
    twin.eps = 1e-6
    return twin


class NormEps(Pattern):
    """Another eps in a normalisation.

    **What it is.** The small number that is added to the variance differs. The defaults do: torch's norms
    have 1e-5, Flax's `LayerNorm`, `RMSNorm` and `GroupNorm` 1e-6, Keras's 1e-3, BERT's configuration
    1e-12. The error is small where the variance is near one, and large in quiet channels.

    **What to do.** Give it by name on both sides: `nn.LayerNorm(n, eps=1e-6)`, `nnx.LayerNorm(n,
    epsilon=1e-5)`. The weights were trained with one of them: keep that.
    """

    name = "norm-eps"
    rank = 0
    examples = (Example(_truth, _faulty, normal(4, 16), "adds eps 1e-06, the truth 1e-05"),)

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield other values of eps: the side's first, then the usual ones."""
        told = [value for name in _NAMES if isinstance(value := scene.settings.get(name), float)]
        has = sorted(
            {eps for call in scene.calls(*NORMS, "add") if (eps := _eps(call)) is not None}
        )
        for old in has:
            for new in dict.fromkeys((*told, *_USUAL)):
                for where, change in (
                    scene.replaced(partial(_handlers, old, new)) if new != old else ()
                ):
                    yield Variant(f"{{side}} adds eps {new:g}, the truth {old:g}{where}", change)

    def differs(self, truth: Mapping[str, Any], side: Mapping[str, Any]) -> str:
        """Say that the two have another eps."""
        a, b = (
            next((s[n] for n in _NAMES if isinstance(s.get(n), float)), None) for s in (truth, side)
        )
        return f"{{side}} has eps {b:g}, the truth {a:g}" if None not in (a, b) and a != b else ""


def _eps(call: FunctionCall) -> float | None:
    if call.name in NORMS:
        return eps_of(call)
    added = call.get(1, "other")
    return added if isinstance(added, float) and 0 < added <= 0.01 else None


def _handlers(old: float, new: float) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        if _eps(call) != old:
            return call.run()
        return (with_eps(call, new) if call.name in NORMS else call.but(1, "other", new)).run()

    return dict.fromkeys((*NORMS, "add"), handle)
