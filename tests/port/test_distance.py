"""The distance of a port's outputs at another size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from migrate.port.sizes.distance import distance


def test_masks_whose_squares_overflow_hide_no_difference() -> None:
    wanted = np.full(4, np.finfo(np.float32).min, np.float32)
    output = wanted.copy()
    output[1] = 0
    instance: Any = SimpleNamespace(outputs=[wanted], module=torch.nn.Identity(), inputs={})
    far, limit = distance([output], instance)
    assert far == 0.5
    assert far > limit
    assert distance([wanted], instance)[0] == 0
