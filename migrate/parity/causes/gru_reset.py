"""The reset gate of a GRU before or after the product."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, loaded, normal
from migrate.parity.causes.frame.scene import Scene


def _truth() -> nn.Module:
    return nn.GRU(6, 8, batch_first=True)


class _Faulty(nn.GRU):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h, states = x.new_zeros(x.shape[0], 8), []
        w, u = self.weight_ih_l0.chunk(3), self.weight_hh_l0.chunk(3)
        b, c = self.bias_ih_l0.chunk(3), self.bias_hh_l0.chunk(3)
        for step in x.unbind(1):
            r = torch.sigmoid(step @ w[0].T + b[0] + h @ u[0].T + c[0])
            z = torch.sigmoid(step @ w[1].T + b[1] + h @ u[1].T + c[1])
            new = torch.tanh(step @ w[2].T + b[2] + (r * h) @ u[2].T + c[2])
            h = (1 - z) * new + z * h
            states.append(h)
        return torch.stack(states, 1), h[None]


class GruReset(Pattern):
    """The reset gate of a GRU acts on the state before the product instead of after it.

    **What it is.** The first paper multiplies the state by the reset gate and then by the weights
    (Keras's `reset_after=False`); cuDNN, torch and Flax's `GRUCell` multiply by the weights first, and
    add a bias of its own. Weights of one do not fit the other.

    **What to do.** `reset_after=True` in Keras; write the cell out if the weights are of the other kind.
    """

    name = "gru-reset"
    rank = 0
    examples = (
        Example(
            _truth, lambda twin: loaded(_Faulty(6, 8), twin), normal(2, 5, 6), "before the product"
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the cell written out."""
        text = "{side}'s reset gate acts before the product, the truth's after it"
        for where, change in scene.replaced(lambda: {"gru": _before}):
            yield Variant(text + where, change)


def _before(call: FunctionCall) -> Any:
    """Of (input, state, weights, has_biases, layers, dropout, train, bidirectional, batch_first)."""
    x, state, weights, biases, layers = call.args[:5]
    if len(call.args) < 9 or call.args[7]:
        return call.run()
    x = x.transpose(0, 1) if call.args[8] else x
    each, last = len(weights) // layers, []
    for layer in range(layers):
        some = weights[layer * each : (layer + 1) * each]
        w, u = some[0].chunk(3), some[1].chunk(3)
        zeros = [x.new_zeros(()).expand(w[0].shape[0])] * 3
        b, c = (some[2].chunk(3), some[3].chunk(3)) if biases else (zeros, zeros)
        h, states = state[layer], []
        for step in x:
            r = torch.sigmoid(step @ w[0].T + b[0] + h @ u[0].T + c[0])
            z = torch.sigmoid(step @ w[1].T + b[1] + h @ u[1].T + c[1])
            new = torch.tanh(step @ w[2].T + b[2] + (r * h) @ u[2].T + c[2])
            h = (1 - z) * new + z * h
            states.append(h)
        x = torch.stack(states)
        last.append(h)
    return (x.transpose(0, 1) if call.args[8] else x), torch.stack(last)
