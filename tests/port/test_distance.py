"""The distance of a port's outputs at another size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from migrate.port.sizes.distance import difference, distance


def test_masks_whose_squares_overflow_hide_no_difference() -> None:
    wanted = np.full(4, np.finfo(np.float32).min, np.float32)
    output = wanted.copy()
    output[1] = 0
    instance: Any = SimpleNamespace(outputs=[wanted], module=torch.nn.Identity(), inputs={})
    far, limit = distance([output], instance)
    assert far == 0.5
    assert far > limit
    assert distance([wanted], instance)[0] == 0


@pytest.mark.parametrize(
    ("outputs", "says"),
    [
        ([np.ones(4)], "have the shape [4], the original's [5]"),
        ([np.ones(5), np.ones(5)], "are 2, the original's 1"),
        ([np.full(5, np.nan)], "are NaN or infinite in other elements than the original's"),
        ([np.full(5, 1.5)], "are 5.0e-01 from the original's"),
    ],
)
def test_a_difference_is_named_by_its_kind(outputs: list[Any], says: str) -> None:
    instance: Any = SimpleNamespace(outputs=[np.ones(5)], module=torch.nn.Identity(), inputs={})
    apart, limit = distance(outputs, instance)
    assert apart > limit
    assert difference(outputs, instance, apart) == says
