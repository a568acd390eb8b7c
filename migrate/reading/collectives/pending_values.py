"""Values that wait for a collective that has not run yet, and the expressions that read them.

On XLA a collective runs with its graph: when its result is read, or when the graph ends. A read materializes
the tensor that is read and nothing else. Values computed from that tensor earlier, and the values it was
computed from, would run the collective once more.

Source: torch_xla 2.9 (measured on two replicas).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from migrate.catalogue import torch_cuda
from migrate.catalogue.entry import names
from migrate.catalogue.words import (
    CONVERSIONS,
    DESCRIBES,
    DESCRIBING,
    DESCRIBING_METHODS,
    ENDING_METHODS,
    HOST_SAVES,
    KEEPING,
    READ_METHODS,
    RUNS_PENDING,
)
from migrate.reading.facts import Facts
from migrate.reading.flow.dataflow import VIEWS
from migrate.reading.flow.reads import ON_THE_HOST, is_log
from migrate.reading.steps.metrics import ROOT as METRICS
from migrate.reading.steps.metrics import is_gathered
from migrate.reading.values.collectives import OBJECTS, TENSORS, called, makes_gloo_group
from migrate.syntax.tree import base_name, bind, code, is_dotted_name, keyword, string_value
from migrate.syntax.walk import children as children

XM = "torch_xla.core.xla_model."
# These two end the graph themselves: the copy of the result on the first replica is a separate value.
ENDING = frozenset({"reduce", "gather"})
RETURNED = frozenset(
    {
        f"{XM}{name}"
        for name in (
            "all_reduce",
            "all_gather",
            "all_to_all",
            "reduce_scatter",
            "collective_permute",
        )
    }
    | {
        f"torch.distributed.nn{part}.{name}"
        for part in ("", ".functional")
        for name in ("all_reduce", "all_gather", "broadcast", "reduce_scatter", "all_to_all")
    }
)
IN_PLACE = frozenset({f"{XM}all_reduce", f"{XM}collective_broadcast"})
# A file without one of these words makes no collective.
COLLECTIVE = re.compile(
    rb"\b(all_(reduce|gather|to_all)|reduce_scatter|scatter|broadcast|collective_(broadcast|permute))"
)
# Calls in a script for CUDA; the calls that the rewrite puts in their place end the graph.
SYNCS_OF_CUDA = names(*torch_cuda.WAITS) | {"torch.distributed.barrier"}
# Methods whose result shares memory with the object, or is what the object holds.
HOLDS = re.compile(rf"{VIEWS.pattern}|buffers|items|named_parameters|parameters|values")
HANDING_ON = frozenset({"enumerate", "iter", "list", "reversed", "sorted", "tuple", "zip"})


def is_collective(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` is a collective on device tensors that runs with its graph."""
    name = facts.names.of(call.func) or ""
    if name in RETURNED or name in IN_PLACE:
        return True
    if METRICS in facts.names.roots and is_gathered(call, facts):
        return True
    short = called(call, facts.context)
    if name.startswith(".") or short not in TENSORS or short in ENDING:
        return False
    group = keyword(call, "group")
    return group is None or not makes_gloo_group(group.value, facts.context)


def returns_it(call: cst.Call, facts: Facts) -> bool:
    """Whether the collective `call` returns its result; others write into their arguments."""
    if facts.names.of(call.func) in RETURNED:
        return True
    return METRICS in facts.names.roots and is_gathered(call, facts)


def ends_the_graph(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` runs all pending operations of the replica that makes it."""
    name = facts.names.of(call.func) or ""
    if name in RUNS_PENDING or called(call, facts.context) in ENDING:
        return True
    if name == f"{XM}optimizer_step":
        barrier = keyword(call, "barrier")
        return barrier is not None and code(barrier.value) == "True"
    if facts.uses_xla:
        return False
    return name in SYNCS_OF_CUDA or called(call, facts.context) in OBJECTS


def written(call: cst.Call, facts: Facts) -> list[str]:
    """Return the dotted names of the tensors that the collective `call` writes into."""
    short = called(call, facts.context)
    if short in TENSORS:
        bound = bind(call, TENSORS[short])
        first = bound.get(TENSORS[short][0]) if bound is not None else None
        return list(places(first.value)) if first is not None else _all_places(call)
    if facts.names.of(call.func) in IN_PLACE:
        lists = [arg.value for arg in call.args if not isinstance(arg.value, cst.BaseString)]
        if facts.names.of(call.func) == f"{XM}all_reduce":
            # A single tensor is not changed: the result is returned.
            lists = [node for node in lists if isinstance(node, cst.List | cst.ListComp)]
        return [place for node in lists[:1] for place in places(node)]
    return []


def _all_places(call: cst.Call) -> list[str]:
    return [place for arg in call.args for place in places(arg.value)]


def places(node: cst.BaseExpression) -> Iterator[str]:
    """Yield the dotted names of the tensors that `node` is, or holds: `x` of `x.data[0].view(-1)`."""
    if isinstance(node, cst.List | cst.Tuple):
        for element in node.elements:
            yield from places(element.value)
    elif isinstance(node, cst.ListComp | cst.GeneratorExp):
        yield from places(node.for_in.iter)
    elif isinstance(node, cst.Subscript):
        yield from places(node.value)
    elif isinstance(node, cst.Call):
        # The result of an object's method is a separate value: `stats.loss()`.
        if isinstance(node.func, cst.Attribute) and HOLDS.fullmatch(node.func.attr.value):
            yield from places(node.func.value)
        elif isinstance(node.func, cst.Name) and node.func.value in HANDING_ON:
            for arg in node.args:
                yield from places(arg.value)
    elif is_dotted_name(node):
        yield (base_name(node) or "").removesuffix(".data")


def is_read(call: cst.Call, passed: bool, facts: Facts) -> bool:
    """Whether `call` reads a value, if `passed` (one of its arguments waits for a collective)."""
    name = facts.context.qualified_name(call.func) or ""
    if isinstance(call.func, cst.Attribute) and not name:
        method = call.func.attr.value
        if method in READ_METHODS:
            return True
        if method == "to" and call.args:
            return string_value(call.args[0].value) == "cpu"
        if method == "format" and isinstance(call.func.value, cst.BaseString):
            return passed
    if isinstance(call.func, cst.Name) and call.func.value in CONVERSIONS:
        return passed and not name
    if name in HOST_SAVES or name.startswith(ON_THE_HOST):
        return passed
    return passed and is_log(call, facts.context)


def is_description(node: cst.BaseExpression) -> bool:
    """Whether `node` asks for a property known without the tensor's values: `x.shape`, `len(x)`."""
    if isinstance(node, cst.Attribute):
        return node.attr.value in DESCRIBES
    if isinstance(node, cst.Call):
        if isinstance(node.func, cst.Attribute):
            return node.func.attr.value in DESCRIBING_METHODS
        return isinstance(node.func, cst.Name) and node.func.value in DESCRIBING
    if isinstance(node, cst.Comparison):
        return all(
            isinstance(comparison.operator, cst.Is | cst.IsNot) for comparison in node.comparisons
        )
    return isinstance(node, cst.Lambda)


def kept_in(call: cst.Call, facts: Facts) -> str | None:
    """Return the object that a method puts its arguments into: `x` of `x.add_(y)`, `rows.append(y)`."""
    if not isinstance(call.func, cst.Attribute) or facts.context.qualified_name(call.func):
        return None
    method = call.func.attr.value
    in_place = method.endswith("_") and not method.endswith("__")
    return base_name(call.func.value) if in_place or method in KEEPING else None


RETURNED_ELSEWHERE = frozenset(TENSORS) - {"reduce", "gather", "scatter", "broadcast"}


def makes_a_collective(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` runs a function of another file that returns while a collective is pending."""
    here = facts.context.file
    return any(
        definition.path != here
        and definition.returns
        and not definition.calls.isdisjoint(RETURNED_ELSEWHERE)
        and definition.calls.isdisjoint(ENDING_METHODS)
        for definition in facts.context.run_by(call)
    )
