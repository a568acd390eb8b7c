"""Recurrent layers: their gates, and the direction and axis of time."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import torch
from torch import nn

from migrate.parity.causes.frame.changes import attribute, several, weight
from migrate.parity.causes.frame.functions import FunctionCall
from migrate.parity.causes.frame.pattern import (
    Array,
    FaultExample,
    Pattern,
    Variant,
    loaded,
    normal,
)
from migrate.parity.causes.frame.scene import Scene, ScenePart


def _forget_bias_truth() -> nn.Module:
    return nn.LSTM(6, 8, batch_first=True)


def _forget_bias_faulty(twin: nn.Module) -> nn.Module:
    twin.bias_ih_l0.data[8:16] += 1
    return twin


class ForgetBias(Pattern):
    """An additional or missing 1 in the forget gate of an LSTM.

    **What it is.** TensorFlow 1's `LSTMCell(forget_bias=1.0)` and Haiku's LSTM add one when they run;
    torch, Flax and Keras have it in the bias, if at all.

    **What to do.** Add one to (or take it from) the forget gate's bias when it is converted.
    """

    name = "forget-bias"
    examples = (
        FaultExample(
            _forget_bias_truth, _forget_bias_faulty, normal(2, 5, 6), "1 more in the forget gate"
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield one more and one less."""
        for part in scene.parts:
            if isinstance(part.module, nn.LSTM | nn.LSTMCell) and part.module.bias:
                for added, words in ((1.0, "more"), (-1.0, "less")):
                    text = f"{{side}} has 1 {words} in the forget gate of {part.name}"
                    yield Variant(text, partial(_forget_bias_all, part.module, added))


def _forget_bias_all(module: nn.Module, added: float) -> Any:
    names = [name for name, _ in module.named_parameters(recurse=False) if "bias_ih" in name]
    return several(weight(module, name, partial(_moved, added)) for name in names)


def _moved(added: float, tensor: torch.Tensor) -> torch.Tensor:
    i, f, g, o = tensor.chunk(4)
    return torch.cat([i, f + added, g, o])


# In torch's order.
_GATES = {"LSTM": ("input", "forget", "cell", "output"), "GRU": ("reset", "update", "new")}


def _gate_order_faulty(twin: nn.Module) -> nn.Module:
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
        FaultExample(
            _forget_bias_truth, _gate_order_faulty, normal(2, 5, 6), "input, cell, forget, output"
        ),
        FaultExample(_gru, _complement, normal(5, 2, 6), "update gate means the opposite"),
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
                yield Variant(
                    text, partial(_gate_order_all, part.module, partial(_reordered, order))
                )
            if kind == "GRU":
                text = f"the update gate means the opposite in {part.name} of {{side}}"
                yield Variant(text, partial(_gate_order_all, part.module, _negated))


def _gate_order_all(module: nn.Module, change: Any) -> Any:
    names = [name for name, _ in module.named_parameters(recurse=False)]
    return several(weight(module, name, change) for name in names if "hr" not in name)


def _reordered(order: tuple[int, ...], tensor: torch.Tensor) -> torch.Tensor:
    parts = tensor.chunk(len(order))
    return torch.cat([parts[n] for n in order])


def _negated(tensor: torch.Tensor) -> torch.Tensor:
    reset, update, new = tensor.chunk(3)
    return torch.cat([reset, -update, new])


def _gru_reset_truth() -> nn.Module:
    return nn.GRU(6, 8, batch_first=True)


class _GruResetFaulty(nn.GRU):
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
    examples = (
        FaultExample(
            _gru_reset_truth,
            lambda twin: loaded(_GruResetFaulty(6, 8), twin),
            normal(2, 5, 6),
            "before the product",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the cell written out."""
        text = "{side}'s reset gate acts before the product, the truth's after it"
        for where, change in scene.replaced(lambda: {"gru": _before}):
            yield Variant(text + where, change)


def _before(call: FunctionCall) -> Any:
    """Compute the GRU with the reset gate before the product; arguments are those of torch's function.

    They are input, state, weights, has_biases, layers, dropout, train, bidirectional and batch_first.
    """
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


_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


class _ReversedTimeFaulty(nn.LSTM):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x.flip(1))


class _Given(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(9, 6), nn.GRU(6, 8, batch_first=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.rnn(self.embed(ids))[0]


class _ReversedTimeBackwards(_Given):
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
    examples = (
        FaultExample(
            _forget_bias_truth,
            lambda twin: loaded(_ReversedTimeFaulty(6, 8, batch_first=True), twin),
            normal(2, 5, 6),
            "backwards",
        ),
        FaultExample(
            _Given,
            lambda twin: loaded(_ReversedTimeBackwards(), twin),
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


def _flipped(axis: int, output: Array, _mine: Array) -> Array | None:
    return np.flip(output, axis) if output.ndim in (2, 3) and output.shape[axis] > 1 else None


def _batch_first_truth() -> nn.Module:
    return nn.GRU(6, 8)  # (time, batch, features)


def _batch_first_faulty(twin: nn.Module) -> nn.Module:
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
    examples = (
        FaultExample(_batch_first_truth, _batch_first_faulty, normal(5, 3, 6), "batch first"),
    )

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


def _other(parts: tuple[ScenePart, ...]) -> Any:
    return several(
        attribute(part.module, "batch_first", not part.module.batch_first) for part in parts
    )
