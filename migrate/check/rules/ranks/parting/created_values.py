"""Values that only some replicas create on the device or load into the model before the training."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from migrate.check.common import moved_before, receiver
from migrate.check.rules.ranks.parting import GraphDifference
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts
from migrate.reading.steps.in_step import When
from migrate.syntax.origins import at_line
from migrate.syntax.tree import keyword, nodes_of


def made(node: cst.Call, facts: Facts) -> Iterator[GraphDifference]:
    """Yield the first tensor that is created on the device under a test of the rank, before the training."""
    guard = facts.guards.around(node)
    if not isinstance(guard, cst.If) or not facts.steps.found:
        return
    if facts.steps.when(node) is not When.ELSEWHERE:
        return
    if _first_made(guard, facts) is not node:
        return
    line = facts.context.position(guard).line
    message = (
        f"made on the device in some replicas only ({at_line(line)}): it is put into a graph that the "
        "others do not have; make it in all, or on the CPU"
    )
    yield GraphDifference(node, message)


def loaded(node: cst.Call, facts: Facts) -> Iterator[GraphDifference]:
    """Yield the load into a model on the device that only some replicas run."""
    guard = facts.guards.around(node)
    model = receiver(node)
    if not isinstance(guard, cst.If) or not facts.context.moves_to_accelerator:
        return
    if facts.values.kind(model) is not Kind.MODEL or not moved_before(model, node, facts):
        return
    line = facts.context.position(guard).line
    message = (
        f"loaded into the model in some replicas only ({at_line(line)}): the next collective of its weights "
        "has another graph there; load in all replicas, or before the model is moved"
    )
    yield GraphDifference(node, message)


def is_made_on_device(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` is `torch.zeros(…, device=device)` or similar."""
    arg = keyword(call, "device")
    if arg is None or not (facts.names.of(call.func) or "").startswith("torch."):
        return False
    return facts.values.on_device(call)


def _first_made(guard: cst.If, facts: Facts) -> cst.Call | None:
    calls = nodes_of(guard, cst.Call)
    return next((call for call in calls if is_made_on_device(call, facts)), None)
