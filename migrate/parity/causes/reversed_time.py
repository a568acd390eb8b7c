"""A sequence that goes in, or comes out, backwards."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall
from migrate.parity.causes.frame.pattern import Array, Example, Pattern, Variant, loaded, normal
from migrate.parity.causes.frame.scene import Scene

_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


def _truth() -> nn.Module:
    return nn.LSTM(6, 8, batch_first=True)


class _Faulty(nn.LSTM):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x.flip(1))


class _Given(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(9, 6), nn.GRU(6, 8, batch_first=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.rnn(self.embed(ids))[0]


class _Backwards(_Given):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.rnn(self.embed(ids).flip(1))[0]


def _ids() -> tuple[torch.Tensor, ...]:
    return (torch.randint(0, 9, (2, 5)),)


class ReversedTime(Pattern):
    """A sequence goes in, or comes out, backwards.

    **What it is.** The backward direction of a bidirectional layer gives its outputs in the order of the
    text in torch and in Flax's `Bidirectional`; `nn.RNN(reverse=True)` without `keep_order=True` leaves
    them reversed. Some encoders (sequence to sequence) are fed backwards on purpose.

    **What to do.** `keep_order=True`, or reverse once more.
    """

    name = "reversed-time"
    rank = 0
    examples = (
        Example(
            _truth,
            lambda twin: loaded(_Faulty(6, 8, batch_first=True), twin),
            normal(2, 5, 6),
            "backwards",
        ),
        Example(
            _Given,
            lambda twin: loaded(_Backwards(), twin),
            _ids,
            "backwards",
            layer="rnn",
            locally=False,
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield recurrent layers that are fed backwards, and sequences reversed along an axis."""
        for where, change in scene.replaced(lambda: dict.fromkeys(_RECURRENT, _fed)):
            yield Variant(f"the sequence goes in backwards in {{side}}{where}", change)
        for axis in (1, 0):
            text = f"axis {axis} runs backwards in {{side}}, {{where}}"
            yield Variant(text, adjust=partial(_flipped, axis))


def _fed(call: FunctionCall) -> Any:
    axis = 1 if call.args[-1] is True else 0
    return call.but(0, "input", call.args[0].flip(axis)).run()


def _flipped(axis: int, given: Array, _mine: Array) -> Array | None:
    return np.flip(given, axis) if given.ndim in (2, 3) and given.shape[axis] > 1 else None
