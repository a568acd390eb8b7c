"""Costs that the written program asks for, from its operations alone."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from migrate.compiler.written import WrittenOperation
from migrate.fit.as_written import wide_values
from migrate.fit.waste import Waste, found_once


@pytest.mark.parametrize(
    ("where", "size", "reported"),
    [
        ('loc("aten__ge")', 256.0, False),
        ('loc("aten__ge")', 5e4, True),
        ('loc("/home/user/train.py":7:0)', 256.0, True),
    ],
)
def test_small_values_of_float64_without_a_line_are_torchs_own(
    where: str, size: float, reported: bool
) -> None:
    operations = [WrittenOperation("wide", ("f64",), where, size)] * 2
    program: Any = SimpleNamespace(written=SimpleNamespace(operations=operations), shown=str)
    memory: Any = SimpleNamespace(peak=1_000_000)
    assert [waste.kind for waste in wide_values(program, memory)] == ["float64"] * reported


def test_findings_of_two_programs_of_a_step_are_one() -> None:
    found = Waste("padding", "train.py:7", "an array", "pad it", 0.25)
    other = Waste("padding", "train.py:8", "an array", "pad it", 0.25)
    assert [*found_once([found, other, found])] == [replace(found, share=0.5), other]
