"""Gradients of both sides against the truth's: small differences pass, faults are found and named."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from converters.layers.join import SUM, Concat, Stack
from converters.layers.layout import Permute
from converters.mapping.leaves import Piece
from migrate.parity.align.weight_pairs import WeightPair
from migrate.parity.ground.results import ParityCheck, Section
from migrate.parity.ground.settings import TRUTH, SideSettings
from migrate.parity.sides import protocol
from migrate.parity.sides.torch.variant import neighbors
from migrate.parity.tasks import gradients
from migrate.parity.tasks.gradients import Distance, GradientErrors, compare_gradients
from tests.parity.tasks.parties_made import Mlp, parties, seeded, vectors


def rows(section: Section) -> dict[str, ParityCheck]:
    return {check.name: check for check in section.checks}


def test_the_same_model_has_the_same_gradients(tmp_path: Path) -> None:
    section = compare_gradients(parties(seeded(Mlp), seeded(Mlp), vectors(tmp_path), tmp_path))
    assert section.passed
    found = rows(section)
    assert set(found) == {
        "all parameters",
        "gradient of input x",
        *(
            f"gradient {layer}.{kind}"
            for layer in ("one", "norm", "two")
            for kind in ("weight", "bias")
        ),
    }
    for check in found.values():
        assert check.a is not None
        assert check.a == check.b
        assert check.a < check.limit
    # Float32 against float64: far below the limit, and not zero.
    assert 1e-9 < (found["all parameters"].a or 0) < 1e-6


class Faulty(Mlp):
    """The forward pass is the same; the gradient of the first layer is 1e-3 too large."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.one(x)
        made = made + 1e-3 * (made - made.detach())
        return self.two(torch.tanh(self.norm(made)))


def test_a_wrong_backward_pass_is_found_at_its_parameters(tmp_path: Path) -> None:
    section = compare_gradients(parties(seeded(Mlp), seeded(Faulty), vectors(tmp_path), tmp_path))
    failed = {check.name for check in section.checks if not check.passed}
    assert failed == {
        "all parameters",
        "gradient one.weight",
        "gradient one.bias",
        "gradient of input x",
    }
    check = rows(section)["gradient one.weight"]
    assert check.b == pytest.approx(1e-3, rel=1e-2)


class Detached(Mlp):
    """The second layer's bias is taken out of the graph."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.tanh(self.norm(self.one(x)))
        return nn.functional.linear(made, self.two.weight, self.two.bias.detach())


@pytest.mark.parametrize("which", ["a", "b"])
def test_a_missing_gradient_is_a_finding(which: str, tmp_path: Path) -> None:
    one, other = seeded(Mlp), seeded(Detached)
    first, second = (other, one) if which == "a" else (one, other)
    section = compare_gradients(parties(first, second, vectors(tmp_path), tmp_path))
    assert not section.passed
    bad = [check for check in section.checks if not check.passed]
    if which == "b":
        assert [check.name for check in bad] == ["gradient two.bias"]
        assert bad[0].b == math.inf
        assert "B has no gradient here" in bad[0].note
    else:  # the truth is A's model: B has one more
        assert [check.name for check in bad] == ["gradient two.bias of B"]
        assert "the truth has not" in bad[0].note


class Normalized(nn.Module):
    """A bias that a normalization takes away again: its gradient is zero, but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.two = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.one(x)
        made = (made - made.mean(0)) / torch.sqrt(made.var(0) + 1e-5)
        return self.two(made)


def test_a_gradient_that_is_rounding_noise_is_no_alarm(tmp_path: Path) -> None:
    section = compare_gradients(
        parties(seeded(Normalized), seeded(Normalized), vectors(tmp_path), tmp_path)
    )
    assert section.passed
    assert "rounding noise" in rows(section)["gradient one.bias"].note


class Cancelling(Mlp):
    """Gradients that are small differences of large sums: float32 loses four digits of them."""

    fault = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.one(x)
        made = made * 3e4 - made * (3e4 - 1)
        made = made + self.fault * (made - made.detach())
        return self.two(torch.tanh(self.norm(made)))


class Wrong(Cancelling):
    fault = 0.05


def test_what_cancels_is_held_to_the_original_in_its_own_precision(tmp_path: Path) -> None:
    inputs = vectors(tmp_path)
    same, wrong = (
        compare_gradients(
            parties(seeded(Cancelling), seeded(other), inputs, tmp_path / name, emulated=False)
        )
        for name, other in (("same", Cancelling), ("wrong", Wrong))
    )
    check = rows(same)["gradient one.weight"]
    assert check.b > check.limit
    assert same.passed, same.checks
    assert "B is no worse than the run of A in float32" in check.note
    assert not rows(wrong)["gradient one.weight"].passed


def test_bfloat16_is_judged_by_its_own_limits(tmp_path: Path) -> None:
    inputs = vectors(tmp_path)
    made = parties(
        seeded(Mlp),
        seeded(Mlp),
        inputs,
        tmp_path,
        b_settings=SideSettings(dtype="bfloat16"),
        profile="bf16",
    )
    section = compare_gradients(made)
    assert section.passed, section.checks
    assert rows(section)["gradient one.weight"].b > 1e-4
    made = parties(
        seeded(Mlp),
        seeded(Mlp),
        inputs,
        tmp_path / "strict",
        b_settings=SideSettings(dtype="bfloat16"),
        emulated=False,
    )
    assert not compare_gradients(made).passed


def test_a_nan_is_never_within_a_limit() -> None:
    distance = Distance()
    distance.add(0, np.ones(3), np.array([1, np.nan, 1]))
    assert (distance.not_finite, distance.error) == (1, math.inf)


def test_gradients_of_joined_weights() -> None:
    rng = np.random.default_rng(0)
    truths = {name: rng.standard_normal((3, 2)) for name in ("q", "k")}
    turned = Permute((1, 0))
    pieces = tuple(Piece(name, turned) for name in truths)
    stacked = WeightPair("w", ("q", "k"), pieces, Stack(0))
    mine = np.stack([truths["q"].T, truths["k"].T])
    for name, truth, part in stacked.beside(mine, truths.__getitem__):
        assert np.array_equal(truth, truths[name].T)
        assert np.array_equal(truth, part)
    joined = WeightPair("w", ("q", "k"), pieces, Concat(1))
    mine = np.concatenate([truths["q"].T, truths["k"].T], axis=1)
    assert all(np.array_equal(a, b) for _, a, b in joined.beside(mine, truths.__getitem__))
    # Both biases of an LSTM's gate have the gradient of their sum.
    same = {"ih": np.ones(3), "hh": np.ones(3)}
    summed = WeightPair("b", ("ih", "hh"), tuple(Piece(name) for name in same), SUM)
    assert all(np.array_equal(a, b) for _, a, b in summed.beside(np.ones(3), same.__getitem__))


@pytest.mark.parametrize(
    ("own", "passed"),
    [
        # A lucky run: others of the same model are 5 times as far off.
        (2e-6, True),
        # Moved weights alone are far off: a kink, which both sides must take alike.
        (1e-8, False),
    ],
)
def test_a_run_is_judged_by_runs_with_moved_weights_too(
    own: float, passed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = parties(seeded(Mlp), seeded(Mlp), vectors(tmp_path, 1), tmp_path, emulated=False)

    def off(error: float) -> GradientErrors:
        distance = Distance(errors=[error**2], sizes=[1.0])
        return GradientErrors({f"weights/{name}": distance for name in ("one.bias", "two.bias")})

    found = iter([off(1.8e-5)] * gradients.MOVED_RUNS)
    monkeypatch.setattr(gradients, "found_gradients", lambda *arguments: next(found))
    moved: list[int] = []
    section = gradients.judged_gradients(
        compared,
        {"A": off(own), "B": off(3e-5)},
        tmp_path,
        lambda party, settings, folder: moved.append(settings.moved),
    )
    assert section.passed is passed
    assert moved == list(range(1, gradients.MOVED_RUNS + 1))
    assert {check.passed for check in section.checks} == {passed}


def test_moved_weights_and_inputs_are_neighbors() -> None:
    tensor = torch.tensor([1.0, -3.5, 0.0, 1e-6, math.inf])
    moved = [neighbors(tensor, 1, number) for number in range(20)]
    for other in moved:
        assert torch.equal(other[[2, 4]], tensor[[2, 4]])
        for up in (True, False):
            end = torch.full_like(tensor, math.inf if up else -math.inf)
            at = (other > tensor) if up else (other < tensor)
            assert torch.equal(other[at], torch.nextafter(tensor, end)[at])
        assert (other != tensor)[[0, 1, 3]].all()
    assert len({tuple(other.tolist()) for other in moved}) == 8
    assert torch.equal(neighbors(tensor, 1, 3), moved[3])
    assert not all(torch.equal(neighbors(tensor, 2, n), moved[n]) for n in range(20))


def test_a_side_with_moved_weights_has_other_gradients_and_keeps_its_own(tmp_path: Path) -> None:
    model = seeded(Mlp)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    compared = parties(model, seeded(Mlp), vectors(tmp_path, 1), tmp_path)
    truth, own, moved = (tmp_path / name for name in ("truth", "own", "moved"))
    gradients.write_cotangents(compared, compared.truth, tmp_path / "cotangents")
    for settings, folder in (
        (TRUTH, truth),
        (SideSettings(), own),
        (SideSettings(moved=1), moved),
        (SideSettings(), tmp_path / "again"),
    ):
        request = (settings, compared.inputs, tmp_path / "cotangents", folder)
        compared.a.side.ask(protocol.Gradients(*request))
    error = gradients.found_gradients(compared, compared.a, moved, truth).total()
    assert 1e-8 < error.error / error.size < 1e-6
    for name in ("000.safetensors",):
        assert (own / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
        assert (own / name).read_bytes() != (moved / name).read_bytes()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
