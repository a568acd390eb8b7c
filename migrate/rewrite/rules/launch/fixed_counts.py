"""Fixed numbers of processes in a script, while the launch starts a replica on every chip."""

from __future__ import annotations

import libcst as cst

from migrate.reading.names.bindings import passed_for
from migrate.rewrite.workspace import Workspace


def lost_counts(count: cst.BaseExpression, context: Workspace) -> str:
    """Return what the launch makes of the fixed numbers that `count` may be. Empty if nothing is lost.

    One process is no longer one, and launches of different sizes, as a test compares them, become the same.
    A single number above 1 is the number of GPUs that the script was written for.
    """
    values = passed_for(count, context) if isinstance(count, cst.Name) else [count]
    numbers = sorted(
        {expression.evaluated_value for expression in values if isinstance(expression, cst.Integer)}
    )
    if not numbers or (len(numbers) == 1 and numbers[0] != 1):
        return ""
    asked = " and ".join(map(str, numbers))
    processes = "process" if numbers == [1] else "processes"
    message = f"{asked} {processes} asked for, and every launch starts a replica on each chip"
    if 1 in numbers and not context.portable:
        message += ": one process is torch_xla.launch(…, debug_single_process=True)"
    if numbers[-1] > 1:
        message += "; a part of the chips is chosen by TPU_VISIBLE_CHIPS, before the launch"
    return message
