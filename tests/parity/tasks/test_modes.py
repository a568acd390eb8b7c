"""Training mode of both sides against the truth's: A's own float32 is no fault of B's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from migrate.parity.ground.results import ParityCheck
from migrate.parity.tasks.modes import compare_modes
from tests.parity.tasks.parties_made import Mlp, parties, seeded, vectors


class Cancelling(Mlp):
    """Outputs that are small differences of large sums: float32 loses four digits of them."""

    fault = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.last(self.one(x)) * (1 + self.fault)
        return self.two(torch.tanh(self.exact(made)))

    def exact(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3e4 - x * (3e4 - 1)


class Exact(Cancelling):
    """The same without the large sums."""

    def exact(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Wrong(Cancelling):
    fault = 0.05


def failed(other: type[nn.Module], folder: Path, *, strict: bool = False) -> dict[str, ParityCheck]:
    made = parties(
        seeded(Cancelling), seeded(other), vectors(folder), folder / other.__name__, emulated=False
    )
    made = replace(made, profile=replace(made.profile, strict=strict))
    return {check.name: check for check in compare_modes(made).checks if not check.passed}


@pytest.mark.parametrize("other", [Cancelling, Exact])
def test_what_the_original_loses_in_float32_is_no_fault(
    other: type[nn.Module], tmp_path: Path
) -> None:
    assert failed(other, tmp_path) == {}


def test_what_is_further_off_than_the_original_is_a_fault(tmp_path: Path) -> None:
    found = failed(Wrong, tmp_path)
    assert "output of the model" in found
    assert found["output of the model"].a > found["output of the model"].limit


@pytest.mark.parametrize("other", [Cancelling, Exact])
def test_a_strict_comparison_asks_for_the_limit(other: type[nn.Module], tmp_path: Path) -> None:
    assert "output of the model" in failed(other, tmp_path, strict=True)
