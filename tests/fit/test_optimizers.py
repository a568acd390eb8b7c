"""`--train` of a Flax model."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import pytest

from migrate.errors import MigrateError
from migrate.fit.lowered.optimizers import optimizer_named

MODELS = Path(__file__).with_name("models.py")


@pytest.mark.parametrize("name", ["adamw", "optax.lion", "optax.contrib.muon", f"{MODELS}:clipped"])
def test_an_optimizer_of_each_kind_steps(name: str) -> None:
    optimizer = optimizer_named(name)
    weights = {"kernel": jnp.ones((4, 4))}
    updates, _ = optimizer.update(weights, optimizer.init(weights), weights)
    assert updates["kernel"].shape == (4, 4)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lion", "one of sgd"),
        ("optax.lyon", "has no such optimizer"),
        ("optax.masked", "cannot be created from a learning rate alone"),
        (f"{MODELS}:Tower", "gives no optimizer of optax"),
        (f"{MODELS}:nothing", "has no nothing"),
    ],
)
def test_what_is_none_is_told(name: str, said: str) -> None:
    with pytest.raises(MigrateError, match=said):
        optimizer_named(name)
