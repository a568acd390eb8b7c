"""The rewrite rules, one construct a file; a file put here is a rule, nothing else names it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from migrate.catalogue.target import Target
from migrate.rewrite.rule import Rule
from migrate.units import classes_in


@cache
def rules_by_name() -> Mapping[str, Rule]:
    """Return an instance of every rule by its name."""
    return {rule.name: rule for rule in all_rules()}


@cache
def rules_for(target: Target) -> tuple[Rule, ...]:
    """Return the rules that run for `target`, in the order of their names."""
    return tuple(rule for rule in all_rules() if target in rule.targets)


@cache
def all_rules() -> tuple[Rule, ...]:
    """Return an instance of every rule, in the order of their names.

    Raises:
        TypeError: two rules have the same name.
    """
    rules: dict[str, Rule] = {}
    for value in classes_in(__name__, __path__):
        if issubclass(value, Rule):
            if value.name in rules:
                raise TypeError(f"two rules are named {value.name}")
            rules[value.name] = value()
    return tuple(rules[name] for name in sorted(rules))
