"""The size of the terms of a loss."""

from __future__ import annotations

import pytest
import torch

from migrate.train.watch.terms import rounding_of_loss, size_of_terms


def test_terms_that_cancel_count_with_their_sizes() -> None:
    weight = torch.tensor([1.0, -1.0, 0.5], requires_grad=True)
    assert size_of_terms(lambda: (weight * 2).mean()) == pytest.approx(5 / 3)
    assert size_of_terms(lambda: weight.sum() / 4) == pytest.approx(2.5 / 4)


def test_each_sum_counts_by_the_derivative_of_the_loss() -> None:
    weight = torch.tensor([1.0, -1.0], requires_grad=True)
    size = size_of_terms(lambda: torch.mean(weight) + 0.1 * torch.sum(weight.square()))
    assert size == pytest.approx(1.0 + 0.1 * 2)


def test_a_loss_without_sums_has_its_own_size() -> None:
    weight = torch.tensor([3.0], requires_grad=True)
    assert size_of_terms(lambda: -(weight**2).reshape(())) == pytest.approx(9.0)


def test_a_loss_that_cancels_has_the_rounding_of_its_terms() -> None:
    weight = torch.tensor([1.0, -1.0, 3e-4], requires_grad=True)

    def loss() -> torch.Tensor:
        return (weight * 2e-3).mean() + weight.detach().mean() * 0

    whole = rounding_of_loss(lambda: weight.square().mean(), [weight])
    assert whole == pytest.approx(2.0**-23)
    near_zero = rounding_of_loss(loss, [weight])  # 2e-7 is left of 1.3e-3; the slope is 7e-4
    assert near_zero == pytest.approx(2.0**-23 * 2e-3 / (0.1 * 2e-3 / 3) * 2 / 3, rel=1e-3)
