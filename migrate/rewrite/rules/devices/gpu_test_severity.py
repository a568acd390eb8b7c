"""Rate the severity of a test for a GPU that the rewrite answers, by the code that depends on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import libcst as cst

from migrate.catalogue import catalogue
from migrate.check.asked_gpus import INERT, asks_for_gpus, is_inert
from migrate.check.hazard import Severity
from migrate.reading.facts import facts_of
from migrate.rewrite.edit import Edit, RuleFinding
from migrate.rewrite.workspace import Workspace

# What a question tells that decides nothing.
SHOWN = "is only shown: it says {} on a TPU"


def as_bad_as_it_is(
    changes: Iterable[Edit | RuleFinding], call: cst.Call, context: Workspace
) -> Iterator[Edit | RuleFinding]:
    """Yield the changes of a rule at the question `call`, with what happens on a TPU without them.

    Where what depends on the answer is not needed on a TPU, it is information.
    """
    for number, change in enumerate(changes):
        name = context.qualified_name(call.func)
        if number or name is None or not asks_for_gpus(name):
            yield change  # what goes with the question
            continue
        inert = is_inert(call.func, facts_of(context))
        if isinstance(change, Edit):
            entry = catalogue.of(name)
            says = INERT if inert or entry is None else entry.says()
            severity = Severity.INFO if inert else None
            yield replace(change, wrong=f"{name}: {says}", severity=severity)
        else:
            yield replace(change, severity=Severity.INFO) if inert else change
