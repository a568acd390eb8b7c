"""Make the pages of rewrite rules, hazards, causes, layers, names, operators and errors from the code.

python docs/rule_pages.py           write docs/rules/, hazards/, parity/causes/, weights/layers.md, names.md,
                                    targets.md, reference/operators.md, reference/errors.md
python docs/rule_pages.py --check   exit code 1 if a page differs from its rule
"""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

import error_pages
import layer_pages
import name_pages
import operator_pages
import target_pages

from migrate.check.hazard import Group, Hazard
from migrate.check.rules import all_hazards
from migrate.parity.causes import all_patterns
from migrate.parity.causes.frame import page as cause_pages
from migrate.report.text.hazards import hazard_page
from migrate.report.text.rules import rule_page, title
from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.pipeline import rewrite
from migrate.rewrite.rule import Rule
from migrate.rewrite.rules import all_rules

DOCS = Path(__file__).parent
GUIDE = DOCS / "shims" / "portable.md"
LAYERS = DOCS / "weights" / "layers.md"
NAMES = DOCS / "names.md"
OPERATORS = DOCS / "reference" / "operators.md"
ERRORS = DOCS / "reference" / "errors.md"
TARGETS = DOCS / "targets.md"


def index(rules: tuple[Rule, ...]) -> str:
    """Return the Markdown list of all rules."""
    rows = [
        f"| [{rule.name}]({rule.name}.md) | {', '.join(rule.codes)} | {title(rule)} "
        f"| {rule.safety.value} |"
        for rule in rules
    ]
    head = ["# Rewrite rules", "", "Made from the rules by `make docs`.", ""]
    return "\n".join([*head, "| rule | code | does | safety |", "|---|---|---|---|", *rows]) + "\n"


def hazard_index(hazards: tuple[Hazard, ...]) -> str:
    """Return the Markdown list of all hazards, by group."""
    parts = ["# Hazards", "What `migrate check` reports. Made from the hazards by `make docs`."]
    for group in Group:
        parts.append(f"## {group.value}xx {group.heading}")
        rows = [
            f"| [{one.code}]({one.code}.md) | {one.name} | {one.title} | {one.severity.value} |"
            for one in hazards
            if one.group is group
        ]
        parts.append("\n".join(["| code | name | what | severity |", "|---|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def all_pages() -> dict[str, dict[str, str]]:
    """Return the text of every page by folder and name."""
    rules = {f"{rule.name}.md": rule_page(rule) for rule in all_rules()}
    hazards = {f"{hazard.code}.md": hazard_page(hazard) for hazard in all_hazards()}
    causes = {f"{pattern.name}.md": cause_pages.page(pattern) for pattern in all_patterns()}
    return {
        "rules": {**rules, "README.md": index(all_rules())},
        "hazards": {**hazards, "README.md": hazard_index(all_hazards())},
        "parity/causes": {**causes, "README.md": cause_pages.index(all_patterns())},
    }


def guide() -> str:
    """Return docs/shims/portable.md with the diff that the tool makes now of the CUDA script."""
    source = DOCS.parent / "examples" / "portable" / "cuda_original.py"
    done = rewrite(source, options=RewriteOptions(style="portable"))
    before, after = source.read_text().splitlines(), done.data.decode().splitlines()
    lines = list(difflib.unified_diff(before, after, lineterm="", n=1))[2:]
    made = "\n".join(["```diff", *lines, "```"])
    head, first, rest = GUIDE.read_text().partition("from here -->\n")
    _, last, tail = rest.partition("<!-- to here -->")
    return f"{head}{first}{made}\n{last}{tail}"


def main() -> int:
    """Write or check the pages; return the exit code."""
    stale = []
    single = (
        (GUIDE, guide()),
        (LAYERS, layer_pages.page()),
        (NAMES, name_pages.page()),
        (OPERATORS, operator_pages.page()),
        (ERRORS, error_pages.page()),
        (TARGETS, target_pages.page()),
    )
    for path, made in single:
        if not path.exists() or path.read_text() != made:
            stale.append(str(path.relative_to(DOCS.parent)))
            if "--check" not in sys.argv[1:]:
                path.write_text(made)
    for folder, pages in all_pages().items():
        written = {path.name: path.read_text() for path in (DOCS / folder).glob("*.md")}
        differ = sorted(
            name for name in pages.keys() | written if pages.get(name) != written.get(name)
        )
        stale.extend(f"docs/{folder}/{name}" for name in differ)
        if "--check" not in sys.argv[1:]:
            (DOCS / folder).mkdir(parents=True, exist_ok=True)
            for name in differ:
                if name in pages:
                    (DOCS / folder / name).write_text(pages[name])
                else:
                    (DOCS / folder / name).unlink()
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"{name} is not what the rules say: run `make docs`")
        return 1 if stale else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
