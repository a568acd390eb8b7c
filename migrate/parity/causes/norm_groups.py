"""Another number of groups in GroupNorm, or groups of other channels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Scene


def _truth() -> nn.Module:
    return nn.GroupNorm(4, 16)


def _faulty(twin: nn.Module) -> nn.Module:
    twin.num_groups = 8
    return twin


class NormGroups(Pattern):
    """Another number of groups in GroupNorm, or groups of other channels.

    **What it is.** Flax's `GroupNorm` has 32 groups by default, torch's none; `group_size` is not
    `num_groups`. With one group it is LayerNorm over all of an image, with as many as channels
    InstanceNorm. With channels last a reshape to `(…, channels / groups, groups)` groups every n-th
    channel.

    **What to do.** Give `num_groups` on both sides, and reshape to `(…, groups, channels / groups)`.
    """

    name = "norm-groups"
    rank = 0
    examples = (Example(_truth, _faulty, normal(2, 16, 4, 4), "has 8 groups, the truth 4"),)

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield all numbers that divide the channels, and interleaved groups."""
        calls = scene.calls("group_norm")
        for old, channels in sorted(
            {(call.get(1, "num_groups"), call.args[0].shape[1]) for call in calls}
        ):
            for new in (n for n in range(1, channels + 1) if channels % n == 0 and n != old):
                for where, change in scene.replaced(partial(_groups, old, new)):
                    yield Variant(f"{{side}} has {new} groups, the truth {old}{where}", change)
        for where, change in scene.replaced(lambda: {"group_norm": _interleaved}):
            yield Variant(f"{{side}} takes every n-th channel into a group{where}", change)

    def differs(self, truth: Mapping[str, Any], side: Mapping[str, Any]) -> str:
        """Say that the numbers differ."""
        a, b = truth.get("num_groups"), side.get("num_groups")
        return f"{{side}} has {b} groups, the truth {a}" if None not in (a, b) and a != b else ""


def _groups(old: int, new: int) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        return (call.but(1, "num_groups", new) if call.get(1, "num_groups") == old else call).run()

    return {"group_norm": handle}


def _interleaved(call: FunctionCall) -> Any:
    x, groups = call.args[0], call.get(1, "num_groups")
    order = torch.arange(x.shape[1]).reshape(-1, groups).T.reshape(-1)
    back = torch.argsort(order)
    plain = (
        call.but(2, "weight", None).but(3, "bias", None).but(0, "input", x[:, order]).run()[:, back]
    )
    shape = (1, -1, *[1] * (x.ndim - 2))
    weight, bias = call.get(2, "weight"), call.get(3, "bias")
    plain = plain if weight is None else plain * weight.reshape(shape)
    return plain if bias is None else plain + bias.reshape(shape)
