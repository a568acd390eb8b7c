"""Sums over many tensors."""

from __future__ import annotations

import pytest
import torch

from migrate.prove.record.sums import folded, squares, two_sums


@pytest.mark.parametrize(
    ("length", "left"), [(8192, 1024), (8196, 2049), (8193, 8193), (4096, 4096), (0, 0)]
)
def test_a_folded_row_is_shorter_and_has_the_same_sum(length: int, left: int) -> None:
    values = torch.arange(3 * length, dtype=torch.float64).reshape(3, length)
    short = folded(values)
    assert short.shape == (3, left)
    assert torch.equal(short.sum(1), values.sum(1))


def test_squares_are_summed_for_each_part() -> None:
    assert squares(torch.tensor([1.0, 2.0, 3.0, 4.0]), 2).tolist() == [5.0, 25.0]


def test_two_sums_are_plain_and_of_squares() -> None:
    tensors = [torch.tensor([1.0, -3.0]), torch.tensor(2.0), torch.tensor([3 + 4j])]
    assert two_sums(tensors).tolist() == [[-2.0, 10.0], [2.0, 4.0], [7.0, 25.0]]
