"""Saves that stay with the first replica, since it decides by values that the others do not have.

Before its test all replicas run what is pending, so that no graph is left for which it would wait for them.
"""

from __future__ import annotations

import libcst as cst

from migrate.reading.replicas.first_replica import off_first
from migrate.rewrite.edits.nodes import below_line
from migrate.rewrite.rule import Edit, Rule
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code


def with_nothing_pending(rule: Rule, guard: cst.If, context: Workspace) -> Edit:
    """Return the edit that puts a synchronization of all replicas before `guard`."""
    sync = context.vocabulary.write("sync")
    message = f"{sync}: nothing is pending where the first replica saves alone"
    behind = "behind" if off_first(guard.test, context) is not None else "below"
    wrong = (
        f"only the first replica saves, {behind} `if {code(guard.test)}:`. Pending operations would run "
        f"there alone, and wait for the other replicas: {sync} before the `if`"
    )
    return rule.edit(
        guard,
        lambda updated: cst.FlattenSentinel(below_line(updated, sync)),
        message,
        wrong=wrong,
    )
