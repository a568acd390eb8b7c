"""One is added to an LSTM's forget gate."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.changes import several, weight
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Scene


def _truth() -> nn.Module:
    return nn.LSTM(6, 8, batch_first=True)


def _faulty(twin: nn.Module) -> nn.Module:
    twin.bias_ih_l0.data[8:16] += 1
    return twin


class ForgetBias(Pattern):
    """One is added to the forget gate of an LSTM, or is not.

    **What it is.** TensorFlow 1's `LSTMCell(forget_bias=1.0)` and Haiku's LSTM add one when they run;
    torch, Flax and Keras have it in the bias, if at all.

    **What to do.** Add one to (or take it from) the forget gate's bias when it is converted.
    """

    name = "forget-bias"
    rank = 0
    examples = (Example(_truth, _faulty, normal(2, 5, 6), "1 more in the forget gate"),)

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield one more and one less."""
        for part in scene.parts:
            if isinstance(part.module, nn.LSTM | nn.LSTMCell) and part.module.bias:
                for added, words in ((1.0, "more"), (-1.0, "less")):
                    text = f"{{side}} has 1 {words} in the forget gate of {part.name}"
                    yield Variant(text, partial(_all, part.module, added))


def _all(module: nn.Module, added: float) -> Any:
    names = [name for name, _ in module.named_parameters(recurse=False) if "bias_ih" in name]
    return several(weight(module, name, partial(_moved, added)) for name in names)


def _moved(added: float, tensor: torch.Tensor) -> torch.Tensor:
    i, f, g, o = tensor.chunk(4)
    return torch.cat([i, f + added, g, o])
