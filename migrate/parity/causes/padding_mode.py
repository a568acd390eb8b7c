"""Zeros at the edge instead of a reflection, or the reverse."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from torch import nn

from migrate.parity.causes.frame.changes import attribute
from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Scene

_MODES = ("zeros", "reflect", "replicate", "circular")


def _truth() -> nn.Module:
    return nn.Conv1d(2, 4, 3, padding=1, padding_mode="reflect")


def _faulty(twin: nn.Module) -> nn.Module:
    twin.padding_mode = "zeros"
    return twin


class PaddingMode(Pattern):
    """Another value is padded at the edge.

    **What it is.** torch's convolutions take `padding_mode="reflect"`, "replicate" or "circular"; Flax
    pads zeros, or circularly (`padding="CIRCULAR"`), and ports lose the mode. `F.pad` and `jnp.pad` call
    them otherwise: "replicate" is "edge", "circular" is "wrap".

    **What to do.** In JAX pad first: `jnp.pad(x, ..., mode="reflect")`, then convolve with
    `padding="VALID"`.
    """

    name = "padding-mode"
    rank = 0
    examples = (Example(_truth, _faulty, normal(2, 2, 12), "pads zeros, the truth reflect"),)

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield all modes, of convolutions and of `F.pad`."""
        for parts in scene.groups(lambda module: hasattr(module, "padding_mode")):
            old = parts[0].module.padding_mode
            for new in (mode for mode in _MODES if mode != old and len(parts) == 1):
                set_to = partial(attribute, parts[0].module, "padding_mode", new)
                yield Variant(f"{{side}} pads {new}, the truth {old}, in {parts[0].name}", set_to)
        olds = {call.get(2, "mode", "constant") for call in scene.calls("pad")}
        for old in sorted(olds):
            for new in ("constant", *_MODES[1:]):
                for where, change in scene.replaced(partial(_mode, old, new)) if new != old else ():
                    yield Variant(f"{{side}} pads {new}, the truth {old}{where}", change)


def _mode(old: str, new: str) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        same = call.get(2, "mode", "constant") == old
        return (call.but(2, "mode", new).but(3, "value", None) if same else call).run()

    return {"pad": handle}
