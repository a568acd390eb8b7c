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
        sys.stdout.write("validation")
        sys.stderr.write("validation")
    assert _draw() == expected
    assert capsys.readouterr() == ("", "")


def test_the_rank_that_tells_runs_the_block_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    _seed()
    first = _draw()
    second = _draw()
    _seed()
    with shims.together(tells=True):
        assert _draw() == first
        sys.stdout.write("validation")
    assert _draw() == second
    assert capsys.readouterr().out == "validation"


def test_an_error_in_the_block_is_told_and_the_random_numbers_are_put_back() -> None:
    _seed()
    expected = _draw()
    _seed()
    with pytest.raises(ZeroDivisionError):
        _fails()
    assert _draw() == expected


def _fails() -> float:
    with shims.together(tells=False):
        return _draw()[0] / 0
