"""K steps of training: losses against float64's, and against the spread of seeds."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from migrate.parity.ground.alignment import TensorPair
from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.results import ParityCheck, Section
from migrate.parity.inputs.set import InputSet, write_inputs
from migrate.parity.sides import protocol
from migrate.parity.sides.side import ComparedSide
from migrate.parity.tasks.party import Parties
from migrate.parity.tasks.training import (
    TrainingOptions,
    compare_training,
    data_order,
    trailing,
)
from tests.parity.tasks.parties_made import (
    Image,
    Mlp,
    Words,
    parties,
    seeded,
    tokens,
    vectors,
)


def rows(section: Section) -> dict[str, ParityCheck]:
    return {check.name.split(",")[0].split(" of step")[0]: check for check in section.checks}


def test_every_epoch_has_every_input_once() -> None:
    order = data_order(4, 10, 0)
    assert [sorted(order[:4]), sorted(order[4:8]), len(order)] == [[0, 1, 2, 3], [0, 1, 2, 3], 10]
    assert order != data_order(4, 10, 1)


def test_trailing_means() -> None:
    assert trailing([1.0, 3.0, 5.0, 9.0], 2) == [1.0, 2.0, 4.0, 7.0]


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
@pytest.mark.long_cases("momentum")
def test_the_same_model_trains_alike(optimizer: str, tmp_path: Path) -> None:
    made = parties(seeded(Mlp), seeded(Mlp), vectors(tmp_path, 4), tmp_path)
    section = compare_training(made, TrainingOptions(10, optimizer, 1e-2))
    assert section.passed, section.checks
    assert len(section.checks) == 3
    curves = dict(section.curves)
    assert set(curves) == {"A", "B", "band low", "band high", "A, each step", "B, each step"}
    assert {len(curve) for curve in curves.values()} == {10}
    assert curves["A, each step"][-1] < curves["A, each step"][0]
    band = zip(curves["band low"], curves["A"], curves["band high"], strict=True)
    assert all(low <= a <= high for low, a, high in band)
    # The orders of the data do make a difference, or the band could not be judged by.
    assert any(
        low < high for low, high in zip(curves["band low"], curves["band high"], strict=True)
    )


class Other(ComparedSide):
    """A side that trains with other settings than it is asked for."""

    def __init__(self, side: ComparedSide, **changes: object) -> None:
        self._side, self._changes = side, changes

    def ask(self, request: protocol.Request[Any]) -> Any:
        if isinstance(request, protocol.Train):
            changed = dataclasses.replace(request.training, **self._changes)  # type: ignore[arg-type]
            request = dataclasses.replace(request, training=changed)
        return self._side.ask(request)


def with_b(made: Parties, **changes: object) -> Parties:
    side = Other(made.b.side, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(made, b=dataclasses.replace(made.b, side=side))


@pytest.mark.parametrize(
    "changes",
    [{"learning_rate": 1.01e-2}, {"optimizer": "adam"}, {"optimizer": "sgd"}],
    ids=["rate 1 % more", "no weight decay", "sgd"],
)
@pytest.mark.long_cases("no weight decay", "sgd")
def test_another_optimizer_is_found(changes: dict[str, object], tmp_path: Path) -> None:
    made = parties(seeded(Mlp), seeded(Mlp), vectors(tmp_path, 4), tmp_path)
    section = compare_training(with_b(made, **changes), TrainingOptions(8, learning_rate=1e-2))
    step, worst, *_ = section.checks
    assert step.passed  # the first loss is that of the same weights
    assert not worst.passed


def test_what_trains_otherwise_leaves_the_band(tmp_path: Path) -> None:
    made = parties(seeded(Mlp), seeded(Mlp), vectors(tmp_path, 4), tmp_path)
    section = compare_training(
        with_b(made, learning_rate=0.0), TrainingOptions(8, learning_rate=1e-2)
    )
    assert not rows(section)["distance of the loss curves over the spread of seeds"].passed


def test_a_loss_that_is_not_a_number_fails(tmp_path: Path) -> None:
    made = parties(seeded(Mlp), seeded(Mlp), vectors(tmp_path, 2), tmp_path)
    section = compare_training(
        with_b(made, learning_rate=1e30), TrainingOptions(steps=4, learning_rate=1e-2)
    )
    assert not section.passed
    assert all(
        check.passed is (check.name.startswith("loss of step 0")) for check in section.checks
    )


def test_logits_train_on_classes(tmp_path: Path) -> None:
    made = parties(seeded(Words), seeded(Words), tokens(tmp_path), tmp_path)
    section = compare_training(made, TrainingOptions(steps=6))
    assert section.passed
    assert "cross_entropy of output logits" in section.notes[0]
    assert dict(section.curves)["A, each step"][0] == pytest.approx(math.log(50), rel=0.1)


class Padded(Words):
    """Words whose outputs at padding are what `elsewhere` says: nobody looks at them."""

    def __init__(self, elsewhere: float = 0.0) -> None:
        super().__init__()
        self.elsewhere = elsewhere

    def forward(self, input_ids: torch.Tensor, attention_mask: Any = None, mask: Any = None) -> Any:
        logits = super().forward(input_ids)["logits"]
        known = mask if attention_mask is None else attention_mask
        # In proportion to the logits: gradients flow from there too.
        there = logits * self.elsewhere
        return {"logits": torch.where(known.bool()[..., None], logits, there)}


def padded(elsewhere: float) -> Padded:
    torch.manual_seed(0)
    return Padded(elsewhere)


def with_padding(work: Path, *, told: bool = True) -> InputSet:
    mask = np.arange(20) < np.array([[20], [13], [7]])
    ids = [np.random.default_rng(seed).integers(50, size=(3, 20)) for seed in range(4)]
    named = "attention_mask" if told else "mask"
    return write_inputs(work / "inputs", [{"input_ids": one, named: mask} for one in ids])


@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_padding_is_no_part_of_the_loss(loss: str, tmp_path: Path) -> None:
    options = TrainingOptions(4, "momentum", 1e-2, loss=loss)
    for told in (True, False):  # that nobody tells what is padding is all that makes a difference
        work = tmp_path / str(told)
        made = parties(padded(0.5), padded(3.0), with_padding(work, told=told), work)
        assert compare_training(made, options).passed is told


def test_what_is_infinite_at_padding_is_no_part_of_the_loss(tmp_path: Path) -> None:
    made = parties(padded(0.5), padded(math.inf), with_padding(tmp_path), tmp_path)
    first, *_ = compare_training(made, TrainingOptions(1, "sgd")).checks
    assert first.passed


class LastImage(Image):
    """The same with channels last."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).permute(0, 2, 3, 1)


def test_targets_lie_as_the_sides_outputs_do(tmp_path: Path) -> None:
    from migrate.parity.inputs.make import make_inputs

    inputs = make_inputs(["x=float32[2,3,6,6]"], 3, 0, tmp_path / "inputs")
    turned = (TensorPair("", "", (0, 2, 3, 1)),)
    made = parties(seeded(Image), seeded(LastImage), inputs, tmp_path, b_outputs=turned)
    assert compare_training(made, TrainingOptions(steps=6)).passed
    with pytest.raises(ParityError, match="last axis"):
        compare_training(made, TrainingOptions(steps=6, loss="cross_entropy"))
    with pytest.raises(ParityError, match="no floating output words"):
        compare_training(made, TrainingOptions(output="words"))


def test_one_input_has_no_band(tmp_path: Path) -> None:
    made = parties(seeded(Mlp), seeded(Mlp), vectors(tmp_path, 1), tmp_path, emulated=False)
    section = compare_training(made, TrainingOptions(steps=3))
    assert section.passed
    assert len(section.checks) == 2
    assert "no spread of seeds" in section.notes[-1]
