"""Batch and time exchanged."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from torch import nn

from migrate.parity.causes.frame.changes import attribute, several
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Part, Scene


def _truth() -> nn.Module:
    return nn.GRU(6, 8)  # (time, batch, features)


def _faulty(twin: nn.Module) -> nn.Module:
    twin.batch_first = True
    return twin


class BatchFirst(Pattern):
    """Batch and time are exchanged.

    **What it is.** torch's recurrent layers and attention take (time, batch, features) unless
    `batch_first=True`, Flax's (batch, time, features) unless `time_major=True`. Both run on both;
    examples of a batch then follow each other.

    **What to do.** Set `batch_first`, or transpose at the border.
    """

    name = "batch-first"
    rank = 0
    examples = (Example(_truth, _faulty, normal(5, 3, 6), "batch first"),)

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield layers with the other setting."""
        for parts in scene.groups(
            lambda module: isinstance(getattr(module, "batch_first", None), bool)
        ):
            words = "time first" if parts[0].module.batch_first else "batch first"
            names = ", ".join(part.name for part in parts[:3])
            yield Variant(
                f"{{side}} takes {words} in {names}, the truth does not", partial(_other, parts)
            )


def _other(parts: tuple[Part, ...]) -> Any:
    return several(
        attribute(part.module, "batch_first", not part.module.batch_first) for part in parts
    )
