"""Greedy decoding: the first difference of each row, and whether noise explains it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.requests import Generated
from migrate.parity.tasks.generation import compare_generation, partings
from tests.parity.tasks.parties_made import (
    Mlp,
    Words,
    changed,
    parties,
    seeded,
    tokens,
    vectors,
)


def test_only_the_first_difference_of_a_row_counts() -> None:
    a = Generated((((1, 2, 3), (4, 5, 6)),), (((9.0, 9.0, 9.0), (9.0, 0.01, 9.0)),))
    b = Generated((((1, 2, 3), (4, 7, 8)),), (((9.0, 9.0, 9.0), (9.0, 0.02, 9.0)),))
    (found,) = partings(a, b, [0.05])
    assert (found.row, found.token, found.a, found.b, found.margin) == (1, 1, 5, 7, 0.02)
    assert found.tie
    assert not partings(a, b, [0.015])[0].tie
    nan = Generated(b.tokens, (((9.0,) * 3, (9.0, math.nan, 9.0)),))
    assert not partings(a, nan, [0.05])[0].tie


def test_the_same_model_says_the_same(tmp_path: Path) -> None:
    made = parties(seeded(Words), seeded(Words), tokens(tmp_path, 2), tmp_path)
    section = compare_generation(made, 5)
    assert section.passed
    assert section.checks[0].note.startswith("6 of 6 rows are the same")


def test_another_model_says_other_things(tmp_path: Path) -> None:
    wrong = changed(seeded(Words), head__bias=lambda value: value.flip(0))
    made = parties(seeded(Words), wrong, tokens(tmp_path, 2), tmp_path)
    section = compare_generation(made, 5)
    assert not section.passed
    assert (section.checks[0].b or 0) < 1
    assert "not explained by noise" in section.notes[0]


def test_what_cannot_be_decoded_is_one_line(tmp_path: Path) -> None:
    made = parties(seeded(Mlp), seeded(Mlp), vectors(tmp_path, 1), tmp_path)
    with pytest.raises(ParityError, match="gives no output called logits"):
        compare_generation(made, 5)
    with pytest.raises(ParityError, match="takes no input_ids"):
        compare_generation(made, 5, "")
