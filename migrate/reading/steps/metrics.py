"""Metrics of torchmetrics that read device values, or that wait for the other replicas.

Source: torchmetrics 1.8, `torchmetrics/aggregation.py` and `torchmetrics/metric.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import words
from migrate.syntax.tree import code, is_attribute_of_self, keyword, last_part, string_value

if TYPE_CHECKING:
    from migrate.reading.facts import Facts

ROOT = "torchmetrics"
# Each update tests for NaN, unless `nan_strategy="disable"` is given.
AGGREGATORS = words("CatMetric MaxMetric MeanMetric MinMetric RunningMean RunningSum SumMetric")
UPDATES = words("forward update")
COMPUTES = words("compute")
MOVES = words("cuda to train eval")


def read_by_metric(call: cst.Call, facts: Facts) -> str | None:
    """Return what an update of a torchmetrics metric reads; None for other calls."""
    metric = _metric(call, UPDATES, facts)
    if metric is None or last_part(metric.func) not in AGGREGATORS:
        return None
    strategy = keyword(metric, "nan_strategy")
    if strategy is not None and string_value(strategy.value) == "disable":
        return None
    name = last_part(metric.func)
    return f'{name} asks at each update whether a value is NaN, unless nan_strategy="disable"'


def is_gathered(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` is the `compute()` of a torchmetrics metric, which gathers from all replicas."""
    metric = _metric(call, COMPUTES, facts) if facts.context.calls.replicated else None
    alone = keyword(metric, "sync_on_compute") if metric is not None else None
    return metric is not None and (alone is None or code(alone.value) != "False")


def _metric(call: cst.Call, methods: frozenset[str], facts: Facts) -> cst.Call | None:
    """Return the call that creates the metric, if one of `methods` is called; `metric(x)` is its forward."""
    func = call.func
    if "forward" in methods and (metric := next(_made(func, facts), None)) is not None:
        return metric
    if isinstance(func, cst.Attribute) and func.attr.value in methods:
        return next(_made(func.value, facts), None)
    return None


def _made(value: cst.BaseExpression, facts: Facts) -> Iterator[cst.Call]:
    """Yield the torchmetrics calls that create the object `value`, also moved: `MeanMetric().to(device)`."""
    values: list[cst.CSTNode | None] = [value]
    if isinstance(value, cst.Name):
        values = [*facts.context.bound_values(value)]
    elif is_attribute_of_self(value):
        values = [node for _, node in facts.context.attributes.get(value.attr.value, ())]
    for node in values:
        while (
            isinstance(node, cst.Call)
            and isinstance(node.func, cst.Attribute)
            and node.func.attr.value in MOVES
        ):
            node = node.func.value
        if isinstance(node, cst.Call) and (facts.names.of(node.func) or "").startswith(f"{ROOT}."):
            yield node
