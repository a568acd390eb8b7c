"""Every rule's examples, as the rule carries them."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.hazard import HazardExample as marked  # noqa: N813
from migrate.rewrite.check_findings import findings_of
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.rewrite.rule import ExampleKind, Rule, RuleExample, left_alone, reported, rewritten
from migrate.rewrite.rules import all_rules
from migrate.syntax.source import parse
from tests.rewrite.cuda_left import unaccounted

EXAMPLES = [
    pytest.param(rule, example, id=f"{rule.name}-{number}-{example.kind.value}")
    for rule in all_rules()
    for number, example in enumerate(rule.examples)
]


@functools.cache
def run(example: RuleExample, rule: Rule) -> Rewrite:
    source = parse(example.before.encode(), path(rule))
    return rewrite_source(source, options=rule.options_of(example))


def path(rule: Rule) -> Path:
    return Path("notebook.ipynb" if rule.notebook else "script.py")


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_example(rule: Rule, example: RuleExample) -> None:
    done = run(example, rule)
    own = [note for note in done.edits if note.rule == rule.name]
    reports = [note.message for note in done.findings if note.rule == rule.name]
    match example.kind:
        case ExampleKind.REWRITTEN:
            assert done.data.decode() == example.after
            assert own
        case ExampleKind.LEFT_ALONE:
            assert done.data.decode() == example.before
            assert not own
            assert not reports
        case ExampleKind.REPORTED:
            assert any(example.reports in message for message in reports), reports
        case ExampleKind.CHECKED:
            assert not example.after


@functools.cache
def run_again(example: RuleExample, rule: Rule) -> Rewrite:
    once = run(example, rule).data
    return rewrite_source(parse(once, path(rule)), options=rule.options_of(example))


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_a_second_run_changes_nothing(rule: Rule, example: RuleExample) -> None:
    again = run_again(example, rule)
    assert not again.changed
    assert not again.edits


HANDLED = [one for one in EXAMPLES if one.values[1].kind is not ExampleKind.LEFT_ALONE]  # type: ignore[union-attr]


@pytest.mark.parametrize(("rule", "example"), HANDLED)
def test_what_is_left_of_cuda_is_named(rule: Rule, example: RuleExample) -> None:
    again = run_again(example, rule)
    assert unaccounted(again.data.decode(), again.findings) == []


CHECKED = [one for one in EXAMPLES if one.values[1].kind is ExampleKind.CHECKED]  # type: ignore[union-attr]


@pytest.mark.parametrize(("rule", "example"), CHECKED)
def test_what_check_says(rule: Rule, example: RuleExample, tmp_path: Path) -> None:
    script = tmp_path / path(rule)
    script.write_text(example.before)
    _, found = findings_of([script], Config(root=tmp_path, target=example.target))
    for code in rule.codes:
        said = {one.line: one.severity for one in found if one.code == code}
        assert said == marked(example.before).expected(code, rule.edited)


def test_a_rule_without_its_examples_does_not_register() -> None:
    with pytest.raises(TypeError, match="left alone"):

        class _NoLeftAlone(Rule):
            """A rule."""

            name = "no-left-alone"
            nodes = ()
            examples = (rewritten("a", "b"), reported("c", "d"))

    with pytest.raises(TypeError, match="docstring"):

        class _NoDocstring(Rule):
            name = "no-docstring"
            nodes = ()
            examples = (rewritten("a", "b"), left_alone("b"), reported("c", "d"))
