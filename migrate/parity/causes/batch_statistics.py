"""BatchNorm normalises by the batch instead of its running statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, loaded, normal
from migrate.parity.causes.frame.scene import Scene


def _truth() -> nn.Module:
    norm = nn.BatchNorm2d(4)
    nn.init.normal_(norm.running_mean)
    nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return norm


class _Faulty(nn.BatchNorm2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.batch_norm(x, None, None, self.weight, self.bias, True)


class BatchStatistics(Pattern):
    """BatchNorm normalises by the batch instead of its running statistics.

    **What it is.** The layer is in training mode: `model.eval()` was not called, or Flax's `BatchNorm`
    has not `use_running_average=True`. What comes out depends on what else is in the batch.

    **What to do.** `model.eval()` in torch; in Flax `use_running_average=not train`, in nnx
    `model.eval()`.
    """

    name = "batch-statistics"
    rank = 0
    examples = (
        Example(
            _truth,
            lambda twin: loaded(_Faulty(4), twin),
            normal(4, 4, 3, 3),
            "normalises by the batch",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the layers in training mode."""
        for where, change in scene.replaced(lambda: {"batch_norm": _by_batch}):
            text = f"{{side}} normalises by the batch (training mode), not by running statistics{where}"
            yield Variant(text, change)

    def differs(self, truth: Mapping[str, Any], side: Mapping[str, Any]) -> str:
        """Say that the side does not use its running statistics."""
        return (
            "{side} has use_running_average=False"
            if side.get("use_running_average") is False
            else ""
        )


def _by_batch(call: FunctionCall) -> Any:
    return (
        call.but(5, "training", True).but(1, "running_mean", None).but(2, "running_var", None).run()
    )
