"""The page of a pattern, of its docstring and its examples."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from migrate.parity.causes.frame.pattern import Example, Pattern


def page(pattern: Pattern) -> str:
    """Return the Markdown page of a cause."""
    _, _, body = inspect.cleandoc(pattern.__doc__ or "").partition("\n")
    parts = [f"# {pattern.name}: {pattern.title}", body.strip(), "## Example"]
    for example in pattern.examples:
        parts.extend(_example(example))
    return "\n\n".join(parts) + "\n"


def index(patterns: Iterable[Pattern]) -> str:
    """Return the Markdown list of all causes."""
    head = [
        "# Causes",
        "",
        "Why a layer parts: what `migrate parity` tries on the first one that does. A test plants each in its",
        "own examples, where it must be named before every other; without the fault nothing is named.",
        "Made from the causes by `make docs`.",
        "",
        "| cause | what it is |",
        "|---|---|",
    ]
    ordered = sorted(patterns, key=lambda one: one.name)
    rows = [f"| [{one.name}]({one.name}.md) | {one.title} |" for one in ordered]
    return "\n".join([*head, *rows]) + "\n"


def _example(example: Example) -> Iterable[str]:
    yield f"```python\n{_source(example.truth)}\n\n\n{_source(example.faulty)}```"
    yield f"Told: {example.says}"


def _source(made: Callable[..., Any]) -> str:
    lines = inspect.getsource(made).splitlines()
    return "\n".join(
        line.removeprefix("    ") if lines[0].startswith(" ") else line for line in lines
    )
