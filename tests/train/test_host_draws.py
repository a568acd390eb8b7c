"""Draws from `random` and `numpy.random` in a step."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from migrate.train.watch.host_draws import HostProbe, host_state


class Calls:
    """Something with a call and an attribute."""

    alpha = 0.8

    def __call__(self, draw: Any) -> Any:
        return draw()


@pytest.mark.parametrize(
    ("draw", "draws"),
    [
        (lambda: np.random.beta(0.8, 0.8), True),
        (lambda: np.random.permutation(4)[0], True),
        (lambda: random.random(), True),
        (lambda: np.random.default_rng(0).random(), False),
        (lambda: 3.0, False),
    ],
)
def test_a_probe_sees_whether_a_call_draws(draw: Any, draws: bool) -> None:
    random.seed(0)
    np.random.seed(0)
    probe = HostProbe(Calls())
    assert probe.alpha == 0.8
    before = host_state()
    assert isinstance(float(probe(draw)), float)
    assert probe.draws == draws
    assert (host_state() != before) == draws
