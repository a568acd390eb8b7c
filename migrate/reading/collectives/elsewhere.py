"""Functions of other files that write into tensors, or make a collective."""

from __future__ import annotations

import libcst as cst

from migrate.catalogue.words import ENDING_METHODS
from migrate.model.facts import Definition
from migrate.reading.collectives.computing import WRITING
from migrate.reading.facts import Facts


def changes_elsewhere(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` runs a function of another file that writes into tensors."""
    here = facts.context.file
    return any(
        definition.path != here and not definition.calls.isdisjoint(WRITING)
        for definition in facts.context.run_by(call)
    )


def has_collective(definition: Definition) -> bool:
    """Whether a function may make a collective of tensors, itself or by a function that it calls."""
    return definition.combines


def has_read(definition: Definition) -> bool:
    """Whether a function reads a value, or ends the graph."""
    return not definition.calls.isdisjoint(ENDING_METHODS)
