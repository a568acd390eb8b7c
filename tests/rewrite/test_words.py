"""A rule or a hazard that is not asked, as none of its words is in a script, has nothing to say of it."""

from __future__ import annotations

import re
from operator import attrgetter
from pathlib import Path
from textwrap import dedent

import pytest

from migrate.catalogue import prescan
from migrate.catalogue.prescan import concerned, named, spelled
from migrate.check import check
from migrate.check.hazard import Hazard
from migrate.check.rules import all_hazards
from migrate.model.facts import ModuleCalls
from migrate.model.objects.ties import FileTies
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
    monkeypatch.setattr(plan, "concerned", lambda *asked: asked[1])
    monkeypatch.setattr(check, "concerned", lambda *asked: asked[1])
    silent = 0
    for text in dict.fromkeys(TEXTS):
        try:
            source = parse(text.encode(), Path("script.py"))
        except NotPythonError:
            continue
        script = Workspace(source)
        rules: list[Rule] = _others(script, all_rules())
        hazards: list[Hazard] = _others(script, all_hazards())
        found = plan.plan(script, rules, rest=False)
        said = [*found.edits, *found.findings, *check.hits(facts_of(script), hazards)]
        assert not said, (text, said)
        silent += len(rules) + len(hazards)
    assert silent > 30 * len(set(TEXTS))


def test_words_are_looked_up_in_a_list_of_words_as_in_the_text() -> None:
    units = (*all_rules(), *all_hazards())
    expressions = sorted({unit.words for unit in units if unit.words})
    assert sum(prescan._WITHIN_A_WORD.fullmatch(words) is not None for words in expressions) > 50

    class Asked:
        of_facts = ()

        def __init__(self, words: str) -> None:
            self.words = words

    asked = [Asked(words) for words in expressions]
    for text in TEXTS[::20]:
        if prescan.STAR.search(text) is None:
            expected = [words for words in expressions if re.search(words, text)]
            seen = concerned(text, asked, ModuleCalls())
            assert [one.words for one in seen] == expected


def _others(script: Workspace, candidates: tuple[object, ...]) -> list:  # type: ignore[type-arg]
    asked = {id(one) for one in concerned(script.spelled, candidates, script.calls)}  # type: ignore[type-var]
    return [one for one in candidates if id(one) not in asked]


def test_names_by_a_star_are_spelled_elsewhere() -> None:
    rules = [rule for rule in all_rules() if not rule.of_facts]
    assert len(concerned("import torch", rules, ModuleCalls())) < len(rules)
    assert list(concerned("from mine import *", rules, ModuleCalls())) == rules


def test_a_fact_of_the_project_is_enough() -> None:
    [tied] = (rule for rule in all_rules() if rule.name == "tied-weights")
    ties = FileTies(moves={(3, 8): ()})
    assert list(concerned("from mine import *", [tied], ModuleCalls())) == []
    assert list(concerned("", [tied], ModuleCalls(ties=ties))) == [tied]


def test_every_fact_is_one_of_the_project() -> None:
    for candidate in (*all_rules(), *all_hazards()):
        for name in candidate.of_facts:
            assert not attrgetter(name)(ModuleCalls())


def test_a_name_is_spelled_by_its_last_part() -> None:
    assert spelled(["torch.cuda.Stream", "a.b", "b"]) == "Stream|b"
    assert re.search(named(["torch.cuda.device_count"]), "xr.global_device_count()") is None
