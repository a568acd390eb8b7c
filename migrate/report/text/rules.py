"""The rewrite rules as `migrate check --explain` and the pages in docs show them."""

from __future__ import annotations

import difflib
import inspect
from dataclasses import replace
from pathlib import Path

from migrate.catalogue.target import XLA
from migrate.report.text.hazards import targets_of
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.rule import ExampleKind, Rule, RuleExample
from migrate.syntax.source import parse


def title(rule: Rule) -> str:
    """Return the first line of the rule's docstring."""
    return inspect.cleandoc(rule.__doc__ or "").splitlines()[0]


def rule_page(rule: Rule, *, brief: bool = False) -> str:
    """Return the Markdown page of `rule`.

    Args:
        rule: the rule.
        brief: whether to show the first rewritten example and the first that is only reported.
    """
    _, _, body = inspect.cleandoc(rule.__doc__ or "").partition("\n")
    parts = [
        f"# {rule.name}: {title(rule)}",
        f"Code: {', '.join(rule.codes)}. Safety: {rule.safety.value}{_condition(rule)}.",
        body.strip(),
        *targets_of(rule),
    ]
    for kind, heading in (
        (ExampleKind.REWRITTEN, "Rewritten"),
        (ExampleKind.LEFT_ALONE, "Left alone"),
        (ExampleKind.REPORTED, "Reported, not edited"),
        (ExampleKind.CHECKED, "What `migrate check` says of it, line by line"),
    ):
        shown = [example for example in rule.examples if example.kind is kind]
        if brief:
            shown = shown[:1] if kind in (ExampleKind.REWRITTEN, ExampleKind.REPORTED) else []
        if shown:
            parts.append(f"## {heading}")
            parts.extend(_example(example) for example in shown)
        native = [example for example in shown if example.target == XLA]
        if kind is ExampleKind.REWRITTEN and native and not brief:
            parts.append("## Rewritten with `--style portable`")
            parts.extend(_portable(rule, native[0]))
    if brief and len(rule.examples) > 1:
        parts.append(f"More examples: docs/rules/{rule.name}.md")
    return "\n\n".join(parts) + "\n"


def _condition(rule: Rule) -> str:
    return f". The rewrite is right only if {rule.condition}" if rule.condition else ""


def _example(example: RuleExample) -> str:
    if example.target != XLA:
        return f"With `--target {example.target}`:\n\n{_shown(example)}"
    return _shown(example)


def _shown(example: RuleExample) -> str:
    if example.kind is not ExampleKind.REWRITTEN:
        return f"```python\n{example.before}```"
    return _diff(example.before, example.after)


def _diff(before: str, after: str) -> str:
    diff = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1000)
    lines = list(diff)[3:]  # without the names of the files and the first position
    return "```diff\n" + "\n".join(lines) + "\n```"


def _portable(rule: Rule, example: RuleExample) -> list[str]:
    """Return the parts of the page that show what becomes of `example` in the portable style."""
    path = Path("notebook.ipynb" if rule.notebook else "script.py")
    options = replace(rule.options, style="portable")
    done = rewrite_source(parse(example.before.encode(), path), options=options)
    own = [note.message for note in done.findings if note.rule == rule.name]
    parts = [_diff(example.before, done.data.decode())] if done.changed else ["It stays as it is."]
    return [*parts, *(f"Reported: {message}." for message in own)]
