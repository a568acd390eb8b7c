"""Make the pages of the rewrite rules from the rules themselves: docstring and examples.

python docs/rule_pages.py           write docs/rules/
python docs/rule_pages.py --check   exit code 1 if a page differs from its rule
"""

from __future__ import annotations

import difflib
import inspect
import sys
from pathlib import Path

from migrate.rewrite.rule import Example, Kind, Rule
from migrate.rewrite.rules import all_rules

PAGES = Path(__file__).parent / "rules"


def title(rule: Rule) -> str:
    """Return the first line of the rule's docstring."""
    return inspect.cleandoc(rule.__doc__ or "").splitlines()[0]


def page(rule: Rule) -> str:
    """Return the Markdown page of `rule`."""
    _, _, body = inspect.cleandoc(rule.__doc__ or "").partition("\n")
    parts = [f"# {rule.name}: {title(rule)}", f"Safety: {rule.safety.value}.", body.strip()]
    for kind, heading in (
        (Kind.REWRITTEN, "Rewritten"),
        (Kind.LEFT_ALONE, "Left alone"),
        (Kind.REPORTED, "Reported, not edited"),
    ):
        shown = [example for example in rule.examples if example.kind is kind]
        if shown:
            parts.append(f"## {heading}")
            parts.extend(_example(example) for example in shown)
    return "\n\n".join(parts) + "\n"


def _example(example: Example) -> str:
    if example.kind is not Kind.REWRITTEN:
        return f"```python\n{example.before}```"
    before, after = example.before.splitlines(), example.after.splitlines()
    diff = difflib.unified_diff(before, after, lineterm="", n=1000)
    lines = list(diff)[3:]  # without the names of the files and the first position
    return "```diff\n" + "\n".join(lines) + "\n```"


def index(rules: tuple[Rule, ...]) -> str:
    """Return the Markdown list of all rules."""
    rows = [
        f"| [{rule.name}]({rule.name}.md) | {title(rule)} | {rule.safety.value} |" for rule in rules
    ]
    head = ["# Rewrite rules", "", "Made from the rules by `make docs`.", ""]
    return "\n".join([*head, "| rule | does | safety |", "|---|---|---|", *rows]) + "\n"


def main() -> int:
    """Write or check the pages; return the exit code."""
    pages = {f"{rule.name}.md": page(rule) for rule in all_rules()}
    pages["README.md"] = index(all_rules())
    written = {path.name: path.read_text() for path in PAGES.glob("*.md")}
    if "--check" in sys.argv[1:]:
        stale = sorted(
            name for name in pages.keys() | written if pages.get(name) != written.get(name)
        )
        for name in stale:
            print(f"docs/rules/{name} is not what the rules say: run `make docs`")
        return 1 if stale else 0
    PAGES.mkdir(exist_ok=True)
    for name in written.keys() - pages.keys():
        (PAGES / name).unlink()
    for name, text in pages.items():
        (PAGES / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
