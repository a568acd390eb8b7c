"""Choose the hazard for a read of a device value in a step or an evaluation."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.words import NUMBERS, READS, SHOWING_METHODS
from migrate.check.common import method
from migrate.check.hazard import Hazard
from migrate.check.reads import CHECKS
from migrate.check.rules.shapes.control_flow import ControlFlow
from migrate.check.rules.syncs.conversion import ConversionHazard
from migrate.check.rules.syncs.item import Item
from migrate.check.rules.syncs.progress_bar import ProgressBar
from migrate.check.rules.syncs.read_in_function import ReadInFunction
from migrate.check.rules.syncs.shown import Shown
from migrate.check.rules.syncs.to_cpu import ToCpu
from migrate.reading.facts import Facts
from migrate.syntax.tree import nodes

# In this order: a test of a value counts as a test, however the value is read.
HAZARDS: tuple[Hazard, ...] = (
    ControlFlow(),
    Item(),
    ConversionHazard(),
    ToCpu(),
    ProgressBar(),
    Shown(),
    ReadInFunction(),
)
TESTED = cst.If | cst.While | cst.Assert | cst.IfExp


def code_of_read(read: cst.CSTNode, facts: Facts) -> str:
    """Return the code of the hazard for `read`, an expression that reads a value in a step.

    The hazards decide. If none reports the read, its form decides.
    """
    said = code_said(read, facts)
    return said or (ControlFlow.code if _is_test(read, facts) else _by_form(read, facts))


def code_said(read: cst.CSTNode, facts: Facts) -> str:
    """Return the code of the hazard that reports `read`. Empty if none does."""
    inside = list(nodes(read))
    above = facts.context.parent(read)
    if above is not None and _is_test(read, facts):
        inside.append(above)
    for hazard in HAZARDS:
        places = (node for node in inside if isinstance(node, hazard.nodes))
        if any(any(True for _ in hazard.find(node, facts)) for node in places):
            return hazard.code
    return ""


def first_code(reads: Iterable[cst.CSTNode], facts: Facts) -> str:
    """Return the code of the first of `reads`. Empty if there is none."""
    return next((code_of_read(read, facts) for read in reads), "")


def _is_test(read: cst.CSTNode, facts: Facts) -> bool:
    above = facts.context.parent(read)
    return isinstance(above, TESTED) and above.test is read


def _by_form(read: cst.CSTNode, facts: Facts) -> str:
    if not isinstance(read, cst.Call):
        return Shown.code  # the value becomes a text
    name = read.func.value if isinstance(read.func, cst.Name) else method(read)
    if name in READS:
        return Item.code
    if name in NUMBERS or (facts.names.of(read.func) or "") in CHECKS:
        return ConversionHazard.code
    if name in ("cpu", "numpy", "to"):
        return ToCpu.code
    if name in SHOWING_METHODS:
        return ProgressBar.code
    return ReadInFunction.code if facts.context.run_by(read) else Shown.code
