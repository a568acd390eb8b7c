"""Hazards as `migrate check --explain` and the pages in docs show them."""

from __future__ import annotations

import inspect

from migrate.catalogue.target import TARGETS
from migrate.check.hazard import Hazard
from migrate.rewrite.rule import Rule


def targets_of(unit: Hazard | Rule) -> list[str]:
    """Return the parts of a page that say for which targets a rule or a hazard runs."""
    parts = [f"**Targets.** {', '.join(target for target in TARGETS if target in unit.targets)}."]
    if unit.on_torch_tpu:
        parts.append(f"## With `--target torch_tpu`\n\n{unit.on_torch_tpu}")
    return parts


def hazard_page(hazard: Hazard, *, brief: bool = False) -> str:
    """Return the Markdown page of `hazard`: what it is, why, what to do, examples.

    Args:
        hazard: the hazard.
        brief: whether to show the first example and its mend only. The others are tests of small differences.
    """
    _, _, body = inspect.cleandoc(hazard.__doc__ or "").partition("\n")
    parts = [
        f"# {hazard.code} {hazard.name}: {hazard.title}",
        f"Severity: {hazard.severity.value}. Silence one line with `# migrate: ignore[{hazard.code}]`.",
        body.strip(),
        *targets_of(hazard),
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
    if brief:
        sections = {"Reported": sections["Reported"][:1], "Mended": sections["Mended"]}
    for heading, shown in sections.items():
        parts.append(f"## {heading}")
        parts.extend(f"```python\n{example.script}```" for example in shown)
    if brief and len(hazard.examples) > 1:
        parts.append(f"More examples: docs/hazards/{hazard.code}.md")
    return "\n\n".join(parts) + "\n"
