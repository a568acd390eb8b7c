"""A rule or a hazard that is not asked, as none of its words is in a script, has nothing to say of it."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.catalogue.prescan import concerned, spelled
from migrate.check import check
from migrate.check.hazard import Hazard
from migrate.check.rules import all_hazards
from migrate.reading.facts import facts_of
from migrate.rewrite import plan
from migrate.rewrite.rule import Rule
from migrate.rewrite.rules import all_rules
from migrate.rewrite.workspace import Workspace
from migrate.syntax.source import NotPythonError, parse

SCRIPTS = sorted((Path(__file__).parents[2] / "examples").rglob("*.py"))
TEXTS = [
    *(example.before for rule in all_rules() for example in rule.examples if not rule.notebook),
    *(dedent(example.script) for hazard in all_hazards() for example in hazard.examples),
    *(path.read_text() for path in SCRIPTS),
]


def test_who_is_not_asked_has_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "concerned", lambda _, candidates: candidates)
    monkeypatch.setattr(check, "concerned", lambda _, candidates: candidates)
    silent = 0
    for text in dict.fromkeys(TEXTS):
        try:
            source = parse(text.encode(), Path("script.py"))
        except NotPythonError:
            continue
        rules: list[Rule] = _others(text, all_rules())
        hazards: list[Hazard] = _others(text, all_hazards())
        script = Workspace(source)
        found = plan.plan(script, rules, rest=False)
        said = [*found.edits, *found.findings, *check.hits(facts_of(script), hazards)]
        assert not said, (text, said)
        silent += len(rules) + len(hazards)
    assert silent > 30 * len(set(TEXTS))


def _others(text: str, candidates: tuple[object, ...]) -> list:  # type: ignore[type-arg]
    asked = {id(one) for one in concerned(text, candidates)}  # type: ignore[type-var]
    return [one for one in candidates if id(one) not in asked]


def test_names_by_a_star_are_spelled_elsewhere() -> None:
    rules = all_rules()
    assert len(concerned("import torch", rules)) < len(rules)
    assert list(concerned("from mine import *", rules)) == list(rules)


def test_a_name_is_spelled_by_its_last_part() -> None:
    assert spelled(["torch.cuda.Stream", "a.b", "b"]) == "Stream|b"
