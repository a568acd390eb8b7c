"""The hazards as `migrate check --explain` and the pages in docs show them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from migrate.check.hazard import Hazard
from migrate.check.rules import all_hazards
from migrate.errors import MigrateError


class NoSuchHazardError(MigrateError):
    """There is no hazard of that code or name.

    Cause: a code after `--explain` that no hazard has.

    Remedy: `migrate check --explain list` names them all.
    """


def hazard_list() -> Iterator[str]:
    """Yield a line for each hazard: code, usual severity, name, title."""
    for hazard in all_hazards():
        yield f"{hazard.code}  {hazard.severity:<8} {hazard.name:<22} {hazard.title}"


def explanation(code: str) -> str:
    """Return the page of a hazard, by code or name; the list of them all for "list".

    Raises:
        NoSuchHazardError: there is none.
    """
    if code.lower() == "list":
        return "\n".join(hazard_list())
    for hazard in all_hazards():
        if code.upper() == hazard.code or code.lower() == hazard.name:
            return hazard_page(hazard)
    raise NoSuchHazardError(
        f"there is no hazard {code}", "`migrate check --explain list` names them all"
    )


def hazard_page(hazard: Hazard) -> str:
    """Return the Markdown page of `hazard`: what it is, why, what to do, examples."""
    _, _, body = inspect.cleandoc(hazard.__doc__ or "").partition("\n")
    parts = [
        f"# {hazard.code} {hazard.name}: {hazard.title}",
        f"Severity: {hazard.severity.value}. Silence one line with `# migrate: ignore[{hazard.code}]`.",
        body.strip(),
    ]
    marked = [bool(one.expected(hazard.code, hazard.severity)) for one in hazard.examples]
    sections = {
        "Reported": [one for one, found in zip(hazard.examples, marked, strict=True) if found],
        "Mended": [hazard.mended],
        "Left alone": [
            one for one, found in zip(hazard.examples, marked, strict=True) if not found
        ],
    }
    for heading, shown in sections.items():
        parts.append(f"## {heading}")
        parts.extend(f"```python\n{one.script}```" for one in shown)
    return "\n\n".join(parts) + "\n"
