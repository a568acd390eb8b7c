"""Operators of a recording that draw random numbers in training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from converters.graph.ir import Apply, Call, Graph, Op, Ref, calls

# An operator of ours: (tensor, rate, axes that are dropped together, path of the module that it is or "").
DROPOUT = "tpu_migrate.dropout"
ATTENTION = "aten.scaled_dot_product_attention.default"
_RECURRENT = {"aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input"}


@dataclass(frozen=True)
class Modes:
    """How a model computes in training.

    Attributes:
        statistics: paths of the normalisations that use the batch's statistics then.
        drawn: inputs that the original draws itself in training, by Python or numpy.
        refused: why training is not in the port, with a line of the original; "" where it is.
    """

    statistics: frozenset[str] = frozenset()
    drawn: tuple[str, ...] = ()
    refused: str = ""


def is_dropout(item: Any) -> TypeGuard[Op]:
    """Whether an item is a dropout."""
    return isinstance(item, Op) and item.target == DROPOUT


def kept_layers(graph: Graph) -> dict[int, Ref]:
    """What stands for a layer's result where the layer may be left out by chance → the result itself.

    It is a choice by a dropout of one number (`converters.graph.merging.left_out`).
    """
    found: dict[int, Ref] = {}
    producers: dict[int, Op] = {}
    for one in calls(graph.root):
        for item in one.body:
            if isinstance(item, Op):
                producers |= dict.fromkeys(item.outs, item)
    for number, item in producers.items():
        if item.target != "aten.where.self" or not isinstance(item.arguments[1], Ref):
            continue
        test = _producer(producers, item.arguments[0])
        drawn = _producer(producers, test.arguments[0]) if test is not None else None
        if is_dropout(drawn) and graph.facts[drawn.outs[0]].shape == ():
            found[number] = item.arguments[1]
    return found


def _producer(producers: Mapping[int, Op], value: Any) -> Op | None:
    return producers.get(value.id) if isinstance(value, Ref) else None


def dropout_rate(item: Any) -> float:
    """The rate at which an attention drops weights; 0 for other items."""
    if not isinstance(item, Op) or item.target != ATTENTION:
        return 0.0
    rate = item.arguments[4] if len(item.arguments) > 4 else item.named.get("dropout_p", 0.0)
    return float(rate)


def is_recurrent(item: Any) -> bool:
    """Whether an item is a recurrent network, whose arguments 5 and 6 are a rate and a mode."""
    return isinstance(item, Op) and item.target in _RECURRENT


def draws(item: Any) -> bool:
    """Whether an item draws in training, or something within it does."""
    if isinstance(item, Call | Apply):
        return any(map(draws, item.body))
    if is_recurrent(item):
        return bool(item.arguments[5] and item.arguments[6])
    return is_dropout(item) or dropout_rate(item) > 0
