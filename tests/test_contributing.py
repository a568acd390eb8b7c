"""What the guides say is so: their files are there, the rule of CONTRIBUTING works as it stands."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.rule import ExampleKind, Rule
from migrate.rewrite.rules import all_rules
from migrate.syntax.source import parse

ROOT = Path(__file__).parents[1]


@pytest.fixture
def rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rule:
    """Return the rule of CONTRIBUTING, from a file in a folder of rules, found as every rule is."""
    (source,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL
    )
    (tmp_path / "empty_cache.py").write_text(source)
    package = sys.modules["migrate.rewrite.rules"]
    monkeypatch.setattr(package, "__path__", [str(tmp_path)])
    all_rules.cache_clear()
    try:
        (found,) = all_rules()
    finally:
        all_rules.cache_clear()
        sys.modules.pop("migrate.rewrite.rules.empty_cache", None)
    return found


def test_the_rule_of_the_guide_works(rule: Rule) -> None:
    assert rule.name == "empty-cache"
    for example in rule.examples:
        done = rewrite_source(parse(example.before.encode(), Path("script.py")), [rule])
        own = [note.message for note in done.findings if note.rule == rule.name]
        match example.kind:
            case ExampleKind.REWRITTEN:
                assert done.data.decode() == example.after
            case ExampleKind.LEFT_ALONE:
                assert not done.changed
                assert not done.findings
            case ExampleKind.REPORTED:
                assert any(example.reports in message for message in own)


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_the_files_that_a_guide_names_are_there(page: str) -> None:
    named = re.findall(
        r"`((?:migrate|converters|shims|tests|docs)/[\w./]*)`", (ROOT / page).read_text()
    )
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []
