"""Whether the ranks draw equal numbers is compared, whatever they draw."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from migrate.prove.compare.verdict import ProofVerdict, judge
from tests.prove.compare.test_verdict import STEP, folder, two_ranks

__all__ = ["folder"]  # a fixture


@pytest.mark.parametrize(
    ("original", "rewritten", "said"),
    [
        (
            ("own 1", "own 2"),
            ("101", "101"),
            "different random numbers in the original and the same",
        ),
        (("5", "5"), ("5", "6"), "the same random numbers in the original and different ones"),
        (("5", "6"), ("8", "9"), ""),
        (("5", "5"), ("101", "101"), ""),
    ],
)
def test_ranks_that_draw_apart(
    folder: Path,
    original: tuple[str, str],
    rewritten: tuple[str, str],
    said: str,
) -> None:
    theirs = [replace(STEP, seeds={"train.py:14": seed}) for seed in original]
    ours = [replace(STEP, seeds={"train_xla.py:17": seed}) for seed in rewritten]
    judgement = judge(two_ranks(folder, *theirs), two_ranks(folder, *ours))
    assert judgement.verdict is (ProofVerdict.DIFFERS if said else ProofVerdict.MATCH)
    if said:
        assert said in judgement.message
        assert "train_xla.py:17, train.py:14 in the original" in judgement.message
