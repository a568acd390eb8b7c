"""Dropouts of a program in a comparison."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen as nn

from migrate.parity.ground.draws import Draws
from migrate.parity.sides.jax.draws import drawn
from migrate.parity.sides.torch.draws import ComparisonDraws
from migrate.train.proof.dropouts import samples_dropped


@pytest.mark.parametrize(
    ("shape", "together", "drops"),
    [
        ((64, 3), (1,), True),
        ((64, 3, 5), (1, 2), True),
        ((64, 3, 5), (-1, -2), True),
        ((64, 3, 5), (0, 1, 2), True),
        ((64, 3, 5), (), False),
        ((64, 3, 5), (1,), False),  # the channels of a Dropout1d, whatever the layout is
        ((64,), (), False),
    ],
)
def test_dropouts_of_whole_samples_drop(
    shape: tuple[int, ...],
    together: tuple[int, ...],
    drops: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nn.Dropout, "__call__", samples_dropped(nn.Dropout.__call__))
    layer = nn.Dropout(0.5, broadcast_dims=together)
    x = jnp.ones(shape)
    y = layer.apply({}, x, deterministic=False, rngs={"dropout": jax.random.key(0)})
    assert (not np.array_equal(x, y)) == drops


@pytest.mark.parametrize("rounds", [True, False])
def test_both_forms_of_stochastic_depth_keep_what_the_program_keeps(rounds: bool) -> None:
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    with ComparisonDraws(Draws(0)):
        mask = (0.7 + torch.rand(64, 1)).floor() if rounds else torch.empty(64, 1).bernoulli_(0.7)
    with drawn(Draws(0)):
        found = nn.Dropout(0.3, broadcast_dims=(1,)).apply(
            {}, jnp.asarray(x), deterministic=False, rngs={"dropout": jax.random.key(1)}
        )
    np.testing.assert_allclose(found, x.numpy() * mask.numpy() / 0.7, rtol=1e-6)
    assert 0 < mask.sum() < 64
