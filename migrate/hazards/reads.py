"""How bad it is to read a value of the device, by where it is read."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from migrate.hazards.facts import Facts
from migrate.hazards.hazard import Hazard, Hit, Severity
from migrate.hazards.steps import When


def placed(hazard: Hazard, node: cst.CSTNode, what: str, facts: Facts) -> Iterator[Hit]:
    """Yield a hit for the read `what` at `node`: none where it is read now and then, or once.

    A read that only some replicas run is a hazard of its own (XLA305).
    """
    if any(isinstance(above, cst.Assert) for above in facts.context.ancestors(node)):
        return  # XLA110 speaks of it
    if facts.guards.around(node) is not None:
        return
    when = facts.steps.when(node)
    if when is When.STEP:
        yield hazard.hit(node, f"{what} inside the step cuts its graph in two: read after the step")
    elif when is When.EVERY_STEP and facts.steps.loops:
        message = f"{what} at every step: the host waits for the device; read every N steps"
        yield hazard.hit(node, message, Severity.INFO)
