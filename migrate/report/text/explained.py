"""The page of a code: what `migrate check --explain` prints."""

from __future__ import annotations

from collections.abc import Iterator

from migrate.check.config import OLD_NAMES
from migrate.check.rules import all_hazards
from migrate.check.severity import Severity
from migrate.errors import MigrateError
from migrate.report.text.hazards import hazard_page
from migrate.report.text.rules import rule_page, title
from migrate.rewrite.left.codes import NOTEBOOK, UNHANDLED
from migrate.rewrite.rules import all_rules


class NoSuchCodeError(MigrateError):
    """No hazard and no rewrite rule has that code or name.

    Cause: a code after `--explain` that does not exist.

    Remedy: `migrate check --explain list` names them all.
    """


def explanation(code: str) -> str:
    """Return the pages of the hazard and the rewrite rules of a code or name; the list of all for "list".

    Raises:
        NoSuchCodeError: there is none.
    """
    if code.lower() == "list":
        return "\n".join(sorted(_listed()))
    lower = code.lower()
    upper = OLD_NAMES.get(lower, code.upper())
    pages = [
        hazard_page(entry, brief=True)
        for entry in all_hazards()
        if entry.code == upper or entry.name == lower
    ]
    pages += [
        rule_page(entry, brief=True)
        for entry in all_rules()
        if upper in entry.codes or lower in entry.codes.values()
    ]
    if not pages:
        raise NoSuchCodeError(
            f"unknown code {code}", "`migrate check --explain list` lists all codes"
        )
    return "\n".join(pages)


def described() -> dict[str, tuple[str, str, Severity]]:
    """Return the name, the title and the severity of what is reported by no hazard, by its code."""
    rules = {
        code: (name, title(rule), rule.edited)
        for rule in reversed(all_rules())
        for code, name in rule.codes.items()
    }
    others = {
        UNHANDLED: ("unhandled", "A name that no rule handles and that XLA lacks.", Severity.ERROR),
        NOTEBOOK: ("notebook", "A cell that stays as it is.", Severity.ERROR),
    }
    return {**rules, **others}


def _listed() -> Iterator[str]:
    """Yield a line for each hazard and each rule: code, severity, name, title."""
    for hazard in all_hazards():
        yield f"{hazard.code}  {hazard.severity:<8} {hazard.name:<24} {hazard.title}"
    for rule in all_rules():
        for code, name in rule.codes.items():
            yield f"{code}  {rule.edited:<8} {name:<24} {title(rule)}"
