"""What one rank alone would compute, computed by all: only that rank tells, and only it draws."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

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


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Output:
    logits: Any
    name: str = "x"


def test_what_a_model_returns_is_copied_whatever_holds_the_tensors() -> None:
    tensor = torch.ones(2, device="meta")
    held = [{"a": tensor, "b": (tensor, 3)}, Pair(tensor, None), Output({"c": tensor}), "text"]
    with pytest.raises(NotImplementedError):  # each is copied: a tensor without values cannot be
        shims.on_host(held)
    for one in ({"a": [tensor]}, Pair(None, tensor), [Output({"c": tensor})], tensor):
        with pytest.raises(NotImplementedError):
            shims.on_host(one)
    here = torch.ones(2)
    first, pair, output, text = shims.on_host(
        [{"a": here}, Pair(here, None), Output([here]), "text"]
    )
    assert first["a"].equal(here)
    assert pair == Pair(here, None)
    assert output.logits[0].equal(here)
    assert (output.name, text) == ("x", "text")
