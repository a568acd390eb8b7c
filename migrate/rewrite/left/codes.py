"""Codes of a rewrite's findings. They are selected, silenced and explained by code, as hazards are."""

from __future__ import annotations

from functools import cache

from migrate.check.config import known_codes
from migrate.rewrite.results import Note
from migrate.rewrite.rules import all_rules, rules_by_name

# Findings without a rule: names that no rule handles, and cells of a notebook that stay unchanged.
UNHANDLED = "XLA725"
NOTEBOOK = "XLA726"


def code_of(note: Note) -> str:
    """Return the code of an edit or finding of a rule, or of a hazard (whose name is its code).

    A note on a comment that was removed with code (`comments`) has no code: the name is returned.
    """
    return note.own_code or _by_name().get(note.rule, note.rule)


def all_codes() -> tuple[str, ...]:
    """Return the codes of all hazards and rules, each once, in order."""
    of_rules = (code for rule in all_rules() for code in rule.codes)
    return tuple(sorted({*known_codes(), *_by_name().values(), *of_rules}))


@cache
def _by_name() -> dict[str, str]:
    rules = {name: rule.code for name, rule in rules_by_name().items()}
    return {**rules, "unhandled": UNHANDLED, "notebook": NOTEBOOK}
