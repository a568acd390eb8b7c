"""A code that a rule and a hazard share stands for one construct, which one detector finds."""

from __future__ import annotations

import ast
import inspect
import sys

import pytest

from migrate.check.common import ImportHazard
from migrate.check.hazard import Hazard
from migrate.check.rules import all_hazards
from migrate.rewrite.rule import Rule
from migrate.rewrite.rules import all_rules

# What every rule and hazard may ask.
OF_ALL = frozenset({"migrate.reading.facts"})
SHARED = [
    (hazard, rule) for hazard in all_hazards() for rule in all_rules() if hazard.code in rule.codes
]


def _imports(unit: Hazard | Rule) -> set[tuple[str, str]]:
    """Return the modules and names that the file of a hazard or rule imports."""
    tree = ast.parse(inspect.getsource(sys.modules[type(unit).__module__]))
    return {
        (node.module or "", alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@pytest.mark.parametrize(
    ("hazard", "rule"), SHARED, ids=[f"{hazard.code}-{rule.name}" for hazard, rule in SHARED]
)
def test_a_rule_asks_the_detector_of_the_hazard_whose_code_it_has(
    hazard: Hazard, rule: Rule
) -> None:
    if isinstance(hazard, ImportHazard):
        return  # finds the import alone, whose uses the rule edits
    of_rule = _imports(rule)
    both = {pair for pair in of_rule & _imports(hazard) if pair[0].startswith("migrate.reading.")}
    asked = {pair for pair in both if pair[0] not in OF_ALL}
    assert asked or type(hazard).__module__ in {module for module, _ in of_rule}
