"""Look up the kind of manual work for a finding of a rewrite, from its rule, its package or its hazard."""

from __future__ import annotations

import importlib
from functools import cache

from migrate.catalogue.catalogue import of_import
from migrate.check.manual_work import ManualWork
from migrate.check.rules import all_hazards
from migrate.rewrite.left.codes import code_of
from migrate.rewrite.left.framework import RULE as FRAMEWORKS
from migrate.rewrite.results import Note
from migrate.rewrite.rules import all_rules

# FSDP is reported by a rule, by a hazard, and by single names.
SHARDING = "XLA816"


def work_of(note: Note) -> ManualWork:
    """Return the kind of work. It is a call to change if no rule and no hazard has the name (`remaining`)."""
    if note.rule == FRAMEWORKS:
        return _of_framework(note.subject)
    if code_of(note) == SHARDING:
        return ManualWork.SHARDING
    return _by_name().get(note.rule, ManualWork.CALLS)


@cache
def _by_name() -> dict[str, ManualWork]:
    work_by_code = {hazard.code: hazard.work for hazard in all_hazards()}
    for rule in all_rules():
        package = ".".join(type(rule).__module__.split(".")[:4])
        work_by_code[rule.name] = rule.work or importlib.import_module(package).WORK
    return work_by_code


def _of_framework(subject: str) -> ManualWork:
    """Return the work for a framework. A framework with a code in the catalogue has no TPU backend."""
    entry = of_import(subject)
    if entry is None or not entry.code:
        return ManualWork.SWITCH
    return ManualWork.SHARDING if entry.code == SHARDING else ManualWork.FRAMEWORK
