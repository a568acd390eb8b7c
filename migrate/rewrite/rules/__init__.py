"""The rewrite rules, one construct a file; a file put here is a rule, nothing else names it."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from migrate.rewrite.rule import Rule


@cache
def all_rules() -> tuple[Rule, ...]:
    """Return an instance of every rule, in the order of their names.

    Raises:
        TypeError: two rules have the same name.
    """
    rules: dict[str, Rule] = {}
    for info in pkgutil.iter_modules(__path__, f"{__name__}."):
        module = importlib.import_module(info.name)
        for value in vars(module).values():
            defined_here = isinstance(value, type) and value.__module__ == info.name
            if defined_here and issubclass(value, Rule):
                if value.name in rules:
                    raise TypeError(f"two rules are named {value.name}")
                rules[value.name] = value()
    return tuple(rules[name] for name in sorted(rules))
