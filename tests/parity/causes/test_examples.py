"""Each cause is found in its own examples before every other, and nothing is in clean ones."""

from __future__ import annotations

from typing import Any

import pytest

from migrate.parity.causes import all_patterns
from migrate.parity.causes.frame.pattern import FaultExample

EXAMPLES = [
    pytest.param(pattern.name, example, id=f"{pattern.name}-{number}")
    for pattern in all_patterns()
    for number, example in enumerate(pattern.examples)
]


@pytest.mark.parametrize(("name", "example"), EXAMPLES)
def test_the_cause_of_the_example_comes_first(
    name: str, example: FaultExample, compare: Any
) -> None:
    compared = compare(example)
    causes = compared.causes()
    assert causes, f"nothing explains a difference of {compared.difference:.1e}"
    assert causes[0].name == name, [f"{c.name}: {c.text} ({c.evidence})" for c in causes]
    assert causes[0].certain
    assert example.says in causes[0].text


@pytest.mark.parametrize(("name", "example"), EXAMPLES)
def test_nothing_is_found_where_nothing_is_wrong(
    name: str, example: FaultExample, compare: Any
) -> None:
    assert compare(example, clean=True).causes() == ()


@pytest.mark.parametrize(
    ("name", "example"), [one for one in EXAMPLES if not one.values[1].locally]
)
def test_it_is_found_of_the_layer_that_computes_the_argument(
    name: str, example: FaultExample, compare: Any
) -> None:
    causes = compare(example).causes_around()
    assert causes
    assert causes[0].name == name
    assert example.says in causes[0].text
