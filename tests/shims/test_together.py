"""What one rank alone would compute, computed by all: only that rank tells, and only it draws."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest
import torch

import shims


def _draw() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def _seed() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)


def test_another_rank_prints_nothing_and_draws_on_as_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _seed()
    expected = _draw()
    _seed()
    with shims.together(tells=False):
        _draw()
        random.seed(7)
        torch.manual_seed(7)
        print("validation")
        print("validation", file=sys.stderr)
    assert _draw() == expected
    assert capsys.readouterr() == ("", "")


def test_the_rank_that_tells_runs_the_block_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    _seed()
    first = _draw()
    second = _draw()
    _seed()
    with shims.together(tells=True):
        assert _draw() == first
        print("validation")
    assert _draw() == second
    assert capsys.readouterr().out == "validation\n"


def test_an_error_in_the_block_is_told_and_the_random_numbers_are_put_back() -> None:
    _seed()
    expected = _draw()
    _seed()
    with pytest.raises(ValueError, match="bad"), shims.together(tells=False):
        _draw()
        raise ValueError("bad")
    assert _draw() == expected
