"""Operators of a recording that draw random numbers in training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from converters.graph.ir import Apply, Call, Graph, Op, Ref, calls

# Our own operator: (tensor, rate, axes that are dropped together, path of its module or "").
DROPOUT = "tpu_migrate.dropout"
ATTENTION = "aten.scaled_dot_product_attention.default"
_RECURRENT = {"aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input"}


@dataclass(frozen=True)
class Modes:
    """Differences of training from evaluation in a model.

    Attributes:
        statistics: paths of the normalizations that use the batch's statistics in training.
        drawn: inputs that the original draws itself in training, by Python or numpy.
        refused: why the port has no training, with a line of the original; "" if it has.
    """

    statistics: frozenset[str] = frozenset()
    drawn: tuple[str, ...] = ()
    refused: str = ""


def is_dropout(item: Any) -> TypeGuard[Op]:
    """Whether an item is a dropout."""
    return isinstance(item, Op) and item.target == DROPOUT


def kept_layers(graph: Graph) -> dict[int, Ref]:
    """Result of a layer that may be left out by chance → the layer's own result.

    The key is a choice by a dropout of one number (`converters.graph.merging.left_out`).
    """
    kept: dict[int, Ref] = {}
    producers: dict[int, Op] = {}
    for call in calls(graph.root):
        for item in call.body:
            if isinstance(item, Op):
                producers |= dict.fromkeys(item.outs, item)
    for number, item in producers.items():
        if item.target != "aten.where.self" or not isinstance(item.arguments[1], Ref):
            continue
        test = _producer(producers, item.arguments[0])
        drawn = _producer(producers, test.arguments[0]) if test is not None else None
        if is_dropout(drawn) and graph.facts[drawn.outs[0]].shape == ():
            kept[number] = item.arguments[1]
    return kept


def _producer(producers: Mapping[int, Op], value: Any) -> Op | None:
    return producers.get(value.id) if isinstance(value, Ref) else None


def dropout_rate(item: Any) -> float:
    """The rate at which an attention drops weights; 0 for other items."""
    if not isinstance(item, Op) or item.target != ATTENTION:
        return 0.0
    rate = item.arguments[4] if len(item.arguments) > 4 else item.named.get("dropout_p", 0.0)
    return float(rate)


def is_recurrent(item: Any) -> bool:
    """Whether an item is a recurrent network. Its arguments 5 and 6 are a rate and a mode."""
    return isinstance(item, Op) and item.target in _RECURRENT


def draws(item: Any) -> bool:
    """Whether an item, or anything in it, draws random numbers in training."""
    if isinstance(item, Call | Apply):
        return any(map(draws, item.body))
    if is_recurrent(item):
        return bool(item.arguments[5] and item.arguments[6])
    return is_dropout(item) or dropout_rate(item) > 0
