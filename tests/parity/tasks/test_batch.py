"""A side at batch 1 against batch n."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from migrate.parity.ground.settings import SideSettings
from migrate.parity.inputs.make import make_inputs
from migrate.parity.tasks.batch import compare_batches
from tests.parity.tasks.parties_made import Mlp, parties, seeded, vectors


class Leaks(Mlp):
    """Rows see each other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + 1e-3 * x.mean(0))


def test_rows_do_not_depend_on_each_other(tmp_path: Path) -> None:
    section = compare_batches(parties(seeded(Mlp), seeded(Mlp), vectors(tmp_path), tmp_path))
    assert section.passed
    assert [(check.a is None, check.b is None) for check in section.checks] == [
        (False, True),
        (True, False),
    ]
    assert section.checks[0].name == "A: batch 1 against batch 6"


def test_rows_that_see_each_other_are_found_on_their_side(tmp_path: Path) -> None:
    section = compare_batches(parties(seeded(Mlp), seeded(Leaks), vectors(tmp_path), tmp_path))
    assert [check.passed for check in section.checks] == [True, False]
    assert 1e-6 < (section.checks[1].b or math.nan) < 1


def test_one_pass_is_told_to_spare_single_rows(tmp_path: Path) -> None:
    made = parties(
        seeded(Mlp),
        seeded(Mlp),
        vectors(tmp_path),
        tmp_path,
        b_settings=SideSettings(precision="default"),
        profile="tpu-default",
    )
    section = compare_batches(made)
    assert section.passed
    # Emulated as on a TPU: batch 1 is exact, batch 6 is one bf16 pass.
    assert (section.checks[1].b or 0) > 1e-4
    assert any("jax#16349" in note for note in section.notes)


def test_one_row_is_nothing_to_compare(tmp_path: Path) -> None:
    inputs = make_inputs(["x=float32[1,8]"], 1, 0, tmp_path / "inputs")
    section = compare_batches(parties(seeded(Mlp), seeded(Mlp), inputs, tmp_path))
    assert not section.checks
    assert "one row" in section.notes[0]
