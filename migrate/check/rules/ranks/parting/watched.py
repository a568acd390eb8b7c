"""Hooks of a logger on a model, which read the device in the step of some replicas only."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from migrate.check.common import method, option, receiver
from migrate.check.rules.ranks.parting import GraphDifference
from migrate.check.rules.ranks.parting.unrun import kept_from
from migrate.reading.facts import Facts
from migrate.syntax.origins import at_line
from migrate.syntax.tree import is_none

WATCH = "wandb.watch"
RUN = "wandb.init"


def watched(call: cst.Call, facts: Facts) -> Iterator[GraphDifference]:
    """Yield the call of `wandb.watch` that some replicas make, unless it logs no values."""
    if not _watches(call, facts):
        return
    guard = kept_from(call, facts)
    log = option(call, "log", facts)
    if guard is None or is_none(log):
        return
    line = facts.context.position(guard).line
    message = (
        f"wandb.watch reads gradients in the backward pass, in some replicas only ({at_line(line)}): graphs "
        "part, all hang; leave it out, and log what all compute, as the norm that clip_grad_norm_ returns"
    )
    yield GraphDifference(call, message)


def _watches(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` is `wandb.watch(model)`, or `run.watch(model)` of a run that `wandb.init` gave."""
    if facts.names.of(call.func) == WATCH:
        return True
    if not isinstance(call.func, cst.Attribute) or method(call) != "watch":
        return False
    run = receiver(call)
    if facts.names.of(run) == "wandb.run":
        return True
    runs = facts.values.given_to(run) if isinstance(run, cst.Name | cst.Attribute) else ()
    return any(isinstance(value, cst.Call) and facts.names.of(value.func) == RUN for value in runs)
