"""Hazards as `migrate check --explain` and the pages in docs show them."""

from __future__ import annotations

import inspect

from migrate.check.hazard import Hazard


def hazard_page(hazard: Hazard) -> str:
    """Return the Markdown page of `hazard`: what it is, why, what to do, examples."""
    _, _, body = inspect.cleandoc(hazard.__doc__ or "").partition("\n")
    parts = [
        f"# {hazard.code} {hazard.name}: {hazard.title}",
        f"Severity: {hazard.severity.value}. Silence one line with `# migrate: ignore[{hazard.code}]`.",
        body.strip(),
    ]
    marked = [bool(example.expected(hazard.code, hazard.severity)) for example in hazard.examples]
    sections = {
        "Reported": [
            example for example, reported in zip(hazard.examples, marked, strict=True) if reported
        ],
        "Mended": [hazard.mended],
        "Left alone": [
            example
            for example, reported in zip(hazard.examples, marked, strict=True)
            if not reported
        ],
    }
    for heading, shown in sections.items():
        parts.append(f"## {heading}")
        parts.extend(f"```python\n{example.script}```" for example in shown)
    return "\n\n".join(parts) + "\n"
