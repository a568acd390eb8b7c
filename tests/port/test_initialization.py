"""The comparison of what two models draw: it lets equal laws pass, and tells others apart."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from migrate.port.initialization import difference
from migrate.port.original import load_original

Draw = Callable[[np.random.Generator], np.ndarray[Any, Any]]


def _uniform(rng: np.random.Generator, bound: float = 0.1, size: int = 600) -> np.ndarray[Any, Any]:
    return rng.uniform(-bound, bound, size).astype(np.float32)


def _padded(rng: np.random.Generator) -> np.ndarray[Any, Any]:
    made = rng.normal(size=(20, 30)).astype(np.float32)
    made[3] = 0
    return made


def _drawn(draw: Draw, seed: int, count: int = 4) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return [draw(rng) for _ in range(count)]


@pytest.mark.parametrize(
    "draw",
    [_uniform, _padded, lambda _: np.full(5, 0.5, np.float32), lambda rng: _uniform(rng, 1e-6, 3)],
)
def test_samples_of_one_law_are_equal(draw: Draw) -> None:
    assert difference(_drawn(draw, 0), _drawn(draw, 1)) == ""


@pytest.mark.parametrize(
    ("theirs", "ours", "said"),
    [
        (_uniform, lambda rng: _uniform(rng, 0.17), "standard deviation"),
        (_uniform, lambda rng: rng.normal(0, 0.1 / 3**0.5, 600), "tails"),
        (_uniform, lambda rng: _uniform(rng) + 0.05, "mean"),
        (_uniform, lambda _: np.zeros(600), "standard deviation"),
        (_padded, lambda rng: rng.normal(size=(20, 30)), "constant"),
        (lambda _: np.full(5, 1e-6), lambda _: np.full(5, 2e-6), "constant"),
        (lambda _: np.zeros(5), lambda rng: rng.normal(size=5), "constant"),
        (_uniform, lambda rng: _uniform(rng, size=601), "shape"),
    ],
)
def test_samples_of_two_laws_are_told_apart(theirs: Draw, ours: Draw, said: str) -> None:
    assert said in difference(_drawn(theirs, 0), _drawn(ours, 1))


def _twice(count: int, size: int = 300_000) -> list[np.ndarray[Any, Any]]:
    """Two arrays of draws, in which this many elements are the same."""
    one, other = _drawn(lambda rng: _uniform(rng, size=size), 5, 2)
    other[:count] = one[:count]
    return [one, other]


@pytest.mark.parametrize(("count", "said"), [(0, ""), (1, ""), (2, ""), (64, "constant")])
def test_a_number_that_is_drawn_twice_is_no_constant(count: int, said: str) -> None:
    ours = _drawn(lambda rng: _uniform(rng, size=300_000), 6, 2)
    found = difference(_twice(count), ours)
    assert found.startswith("a constant") if said else found == ""


def test_a_single_constant_of_a_small_array_is_found() -> None:
    def bias(rng: np.random.Generator) -> np.ndarray[Any, Any]:
        made = _uniform(rng, size=64)
        made[7] = 0
        return made

    ours = _drawn(lambda rng: _uniform(rng, size=64), 1, 8)
    assert "constant" in difference(_drawn(bias, 0, 8), ours)


def seeded() -> torch.nn.Module:
    """A factory with seeds of its own."""
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    model = torch.nn.Linear(2, 1)
    model.bias.data.fill_(np.random.rand() + random.random())
    return model


def test_new_models_of_a_factory_that_seeds_are_others(tmp_path: Path) -> None:
    original = load_original(f"{__name__}:seeded", None, tmp_path)
    models = [original.module, *(original.fresh(seed) for seed in (1, 2))]
    for name in ("weight", "bias"):
        drawn = {tuple(getattr(model, name).flatten().tolist()) for model in models}
        assert len(drawn) == 3, name
    again = seeded()
    assert torch.equal(again.weight, original.module.weight)
    assert torch.equal(again.bias, original.module.bias)
