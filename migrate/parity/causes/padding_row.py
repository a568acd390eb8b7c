"""The embedding of the padding token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, loaded
from migrate.parity.causes.frame.scene import Scene


def _truth() -> nn.Module:
    return nn.Embedding(20, 8)


class _Faulty(nn.Embedding):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids) * (ids != 0)[..., None]


def _inputs() -> tuple[torch.Tensor, ...]:
    return (torch.cat([torch.randint(1, 20, (2, 5)), torch.zeros(2, 2, dtype=torch.long)], 1),)


class PaddingRow(Pattern):
    """The embedding of the padding token is zero on one side only.

    **What it is.** `padding_idx` of torch makes the row zero at the beginning and keeps its gradient
    away; a loaded checkpoint may still have numbers there, which are used. Keras's `mask_zero`, and ports
    that multiply by the mask, give zeros.

    **What to do.** Use the row of the checkpoint on both sides, or make it zero in the checkpoint.
    """

    name = "padding-row"
    rank = 0
    examples = (
        Example(_truth, lambda twin: loaded(_Faulty(20, 8), twin), _inputs, "zeros for token 0"),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield zeros for the usual padding tokens."""
        said = {call.get(2, "padding_idx") for call in scene.calls("embedding")}
        for token in sorted({0, 1, *(one for one in said if isinstance(one, int) and one >= 0)}):
            for where, change in scene.replaced(partial(_zeroed, token)):
                yield Variant(
                    f"the embedding has zeros for token {token} in {{side}}{where}", change
                )


def _zeroed(token: int) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        return call.run() * (call.args[0] != token)[..., None]

    return {"embedding": handle}
