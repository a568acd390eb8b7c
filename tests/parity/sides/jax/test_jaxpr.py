"""Approximate top-k in the jaxpr of a model."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from migrate.parity.ground.settings import SideSettings
from migrate.parity.sides.jax.runner import JaxRunner
from migrate.parity.tasks.topk import NOT_HERE, in_function
from tests.parity.sides.jax.jax_sides import given


def sampled(x: Any) -> Any:
    return jax.lax.approx_max_k(x, 4, recall_target=0.75)[0]


def looped(x: Any) -> Any:
    return jax.lax.map(jax.jit(sampled), x), jax.lax.top_k(x, 2)


class Model(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return jax.lax.approx_min_k(nn.Dense(16)(x), 3)


def test_it_is_found_inside_of_loops_with_its_line() -> None:
    (found,) = in_function(looped, jnp.ones((3, 2, 16)))
    line = sampled.__code__.co_firstlineno + 1
    assert found.source.endswith(f"tests/parity/sides/jax/test_jaxpr.py:{line}")
    assert (found.recall_target, found.k, found.size, found.largest) == (0.75, 4, 16, True)


def test_an_exact_top_k_is_none() -> None:
    assert in_function(lambda x: jax.lax.top_k(x, 2), jnp.ones((2, 16))) == ()


def test_it_is_found_in_a_model_and_does_not_pass_where_it_cannot_be_seen(tmp_path: Path) -> None:
    runner = JaxRunner(Model(), "linen", "model.py:Model")
    (check,) = runner.measure_top_k(SideSettings(), given(tmp_path, 1, x=(2, 8))).checks
    line = inspect.getsourcelines(Model)[1] + 3
    assert check.name.startswith("approx_min_k 3 of 16")
    assert f"test_jaxpr.py:{line}" in check.name
    assert not check.passed
    assert NOT_HERE in check.note
