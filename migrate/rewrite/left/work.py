"""What kind of work a finding of a rewrite asks for: as its rule, its package or its hazard says."""

from __future__ import annotations

import importlib
import re
from functools import cache

from migrate.check.rules import all_hazards
from migrate.check.work import Work
from migrate.reading.catalogue.catalogue import IMPORTS
from migrate.rewrite.left.framework import RULE as FRAMEWORKS
from migrate.rewrite.results import Note
from migrate.rewrite.rules import all_rules

# FSDP is reported by a rule, by a hazard and name by name.
_SHARDED = re.compile(r"\bFSDP|FullyShardedDataParallel")


def work_of(note: Note) -> Work:
    """The kind of work; a call to change where no rule and no hazard has the name (`remaining`)."""
    if note.rule == FRAMEWORKS:
        return _of_framework(note.message)
    if _SHARDED.search(note.message):
        return Work.SHARDING
    return _by_name().get(note.rule, Work.CALLS)


@cache
def _by_name() -> dict[str, Work]:
    found = {hazard.code: hazard.work for hazard in all_hazards()}
    for rule in all_rules():
        room = ".".join(type(rule).__module__.split(".")[:4])
        found[rule.name] = rule.work or importlib.import_module(room).WORK
    return found


def _of_framework(message: str) -> Work:
    """A framework that a hazard speaks of has no TPU backend; the others have a way of their own."""
    for entry in IMPORTS.values():
        if entry.rule == FRAMEWORKS and entry.code and message.startswith(entry.says()):
            return _by_name()[entry.code]
    return Work.SWITCH
