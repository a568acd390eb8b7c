"""How bad a question for a GPU is that the rewrite answers: by what depends on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import libcst as cst

from migrate.catalogue import catalogue
from migrate.check.asked_gpus import INERT, asks_for_gpus, is_inert
from migrate.check.hazard import Severity
from migrate.reading.facts import facts_of
from migrate.rewrite.edit import Edit, Finding
from migrate.rewrite.workspace import Workspace


def as_bad_as_it_is(
    found: Iterable[Edit | Finding], call: cst.Call, context: Workspace
) -> Iterator[Edit | Finding]:
    """Yield what a rule has found at the question `call`, with what happens on a TPU without its edit.

    Where what depends on the answer is not needed on a TPU, it is information.
    """
    for number, one in enumerate(found):
        name = context.qualified_name(call.func)
        if number or name is None or not asks_for_gpus(name):
            yield one  # what goes with the question
            continue
        inert = is_inert(call.func, facts_of(context))
        if isinstance(one, Edit):
            entry = catalogue.of(name)
            says = INERT if inert or entry is None else entry.says()
            severity = Severity.INFO if inert else None
            yield replace(one, wrong=f"{name}: {says}", severity=severity)
        else:
            yield replace(one, severity=Severity.INFO) if inert else one
