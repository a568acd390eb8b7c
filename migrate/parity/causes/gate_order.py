"""The gates of an LSTM or GRU in another order."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import permutations
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.changes import several, weight
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Scene

# As torch has them.
_GATES = {"LSTM": ("input", "forget", "cell", "output"), "GRU": ("reset", "update", "new")}


def _truth() -> nn.Module:
    return nn.LSTM(6, 8, batch_first=True)


def _faulty(twin: nn.Module) -> nn.Module:
    for tensor in twin.parameters():
        i, f, g, o = tensor.data.chunk(4)
        tensor.data = torch.cat([i, g, f, o])
    return twin


def _gru() -> nn.Module:
    return nn.GRU(6, 8)


def _complement(twin: nn.Module) -> nn.Module:
    for tensor in twin.parameters():
        tensor.data[8:16] *= -1
    return twin


class GateOrder(Pattern):
    """The gates of an LSTM or GRU lie in another order, or mean the opposite.

    **What it is.** torch's LSTM holds input, forget, cell, output; Keras the same; ONNX input, output,
    forget, cell; CNTK and old Theano code others; Flax has a kernel for each (`ii`, `if`, `ig`, `io`).
    torch's GRU holds reset, update, new, Keras's update, reset, new. Some write the update gate the other
    way round: h = z · new + (1 - z) · h.

    **What to do.** Let `migrate weights convert` cut them, or reorder the rows by hand; negate the update
    gate's weights and biases for its complement.
    """

    name = "gate-order"
    rank = 1
    examples = (
        Example(_truth, _faulty, normal(2, 5, 6), "input, cell, forget, output"),
        Example(_gru, _complement, normal(5, 2, 6), "update gate means the opposite"),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield all orders, and the complement of the update gate."""
        for part in scene.parts:
            kind = type(part.module).__name__.removesuffix("Cell")
            gates = _GATES.get(kind, ())
            if not gates:
                continue
            for order in list(permutations(range(len(gates))))[1:]:
                words = ", ".join(gates[n] for n in order)
                text = f"{part.name} holds its gates as {words} in {{side}}"
                yield Variant(text, partial(_all, part.module, partial(_reordered, order)))
            if kind == "GRU":
                text = f"the update gate means the opposite in {part.name} of {{side}}"
                yield Variant(text, partial(_all, part.module, _negated))


def _all(module: nn.Module, change: Any) -> Any:
    names = [name for name, _ in module.named_parameters(recurse=False)]
    return several(weight(module, name, change) for name in names if "hr" not in name)


def _reordered(order: tuple[int, ...], tensor: torch.Tensor) -> torch.Tensor:
    parts = tensor.chunk(len(order))
    return torch.cat([parts[n] for n in order])


def _negated(tensor: torch.Tensor) -> torch.Tensor:
    reset, update, new = tensor.chunk(3)
    return torch.cat([reset, -update, new])
