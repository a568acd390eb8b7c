"""Causes in the optimizer, the schedule, the start, the statistics and the data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from migrate.train.optimizer.recorded import RecordedClip, RecordedGroup, RecordedOptimizer
from migrate.train.proof.causes.data import data_cause
from migrate.train.proof.causes.optimizer import mistakes, optimized, rate_cause
from migrate.train.proof.causes.start import start_cause, statistics_cause
from migrate.train.proof.child import SCALES
from migrate.train.proof.compare import way_ratio

RATES = [0.1, 0.2, 0.4, 0.3, 0.1]


def adamw() -> RecordedOptimizer:
    """Two groups, of which one decays; a schedule; clipping."""
    options = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}
    options["decoupled_weight_decay"] = True  # as torch's own groups have it
    return RecordedOptimizer(
        "torch.optim.adamw.AdamW",
        (
            RecordedGroup(("w",), options),
            RecordedGroup(("b",), {**options, "weight_decay": 0.0}),
        ),
        tuple((rate, rate) for rate in RATES),
        clips=(RecordedClip("norm", 0.5),),
    )


def test_each_mistake_of_the_optimizer_moves_the_weights_elsewhere() -> None:
    generator = torch.Generator().manual_seed(0)
    start = {n: torch.randn(s, generator=generator) for n, s in (("w", (3, 4)), ("b", (4,)))}
    gradients = {n: torch.randn(x.shape, generator=generator) for n, x in start.items()}
    assert (
        torch.linalg.vector_norm(gradients["w"]) > 1
    )  # clipped at 0.5, as at scales of -0.5 and 2
    right = optimized(adamw(), start, gradients, SCALES)
    seen: dict[str, Any] = {}
    for what, changed, options in mistakes(adamw(), start):
        ours = optimized(changed, start, gradients, SCALES, **options)
        ratio = max(way_ratio(ours[n].numpy(), right[n].numpy(), start[n].numpy()) for n in start)
        seen[what.partition(":")[0]] = max(seen.get(what.partition(":")[0], 0), ratio)
        assert ratio > 1e-4 or not what.startswith("other betas"), what
    for words in (
        "decay on biases",
        "lost weight decay",
        "coupled weight decay (L2, Adam)",
        "lost clipping",
        "schedule off by one",
        "lost schedule",
        "other betas",
        "another eps",
    ):
        assert seen[words] > 1e-4, words


def test_only_changed_options_are_mistakes() -> None:
    plain = replace(adamw(), clips=(), rates=((0.1, 0.1),))
    words = [what for what, _, _ in mistakes(plain, {"w": np.ones((2, 2)), "b": np.ones(2)})]
    assert not [w for w in words if "schedule" in w or "lost clipping" in w or "1e-08," in w]


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        ([0.2, 0.4, 0.3, 0.1, 0.0], "schedule off by one: each update has a later one's rate"),
        ([0.0, 0.1, 0.2, 0.4, 0.3], "schedule off by one: each update has an earlier one's rate"),
        ([0.1] * 5, "lost schedule"),
        ([0.2, 0.4, 0.8, 0.6, 0.2], "every rate is 2 times"),
        ([0.1, 0.2, 0.4, 0.4, 0.4], "from update 3 on: 0.4, the script has 0.3"),
    ],
)
def test_a_schedules_mistake_is_named(ours: list[float], words: str) -> None:
    assert rate_cause(ours, RATES).startswith(words)


def test_another_start_is_named() -> None:
    weight = np.random.default_rng(0).normal(size=(3, 4))
    assert "another order" in start_cause("w", weight.T.reshape(3, 4), weight)
    assert start_cause("w", 0.5 * weight, weight).startswith("other initialization: w is 0.5 times")
    assert "deviation" in start_cause("w", np.ones((3, 4)), weight)


@pytest.mark.parametrize(
    ("momentum", "rows", "words"),
    [
        (0.1, 1.0, "biased variance"),
        (0.9, 0.0, "another momentum of running statistics: they move 9 times"),
        (0.0, 0.0, "running statistics are not updated"),
    ],
)
def test_a_mistake_of_statistics_is_named(momentum: float, rows: float, words: str) -> None:
    rng = np.random.default_rng(0)
    names = ("batch_stats/n/mean", "batch_stats/n/var")
    before = {names[0]: np.zeros(5), names[1]: np.ones(5)}
    now = {names[0]: rng.normal(size=5), names[1]: rng.uniform(1, 2, 5)}

    def moved(share: float, biased: float) -> dict[str, Any]:
        scale = {names[0]: 1.0, names[1]: 15 / 16 if biased else 1.0}
        return {n: (1 - share) * before[n] + share * scale[n] * now[n] for n in names}

    assert statistics_cause(before, moved(momentum, rows), moved(0.1, 0)).startswith(words)


def batches() -> list[list[dict[str, Any]]]:
    """Six updates of one micro-batch."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(6):
        tokens = rng.integers(0, 50, (4, 7))
        made.append([{"x": tokens[:, :-1], "y": tokens[:, 1:], "w": rng.normal(size=(4, 2))}])
    return made


def shuffled(own: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """The rows of all batches in another order."""
    rows = {name: np.concatenate([m[0][name] for m in own]) for name in own[0][0]}
    order = np.random.default_rng(1).permutation(24)
    return [[{n: x[order[k : k + 4]] for n, x in rows.items()}] for k in range(0, 24, 4)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda own: own[1:], "batches are ahead by 1"),
        (lambda own: own[:3] + own[:3], "an epoch has the order of an earlier one"),
        (lambda own: [[{**m[0], "y": m[0]["x"]}] for m in own], "labels not shifted"),
        (lambda own: [[{**m[0], "w": m[0]["w"] / 255}] for m in own], "another preprocessing: w"),
        (lambda own: [[{n: x[:2] for n, x in m[0].items()}] for m in own], "x is [2, 6]"),
        (shuffled, "another order"),
        (lambda own: [], "the program has no batches"),
    ],
)
def test_a_mistake_of_the_data_is_named(change: Any, words: str) -> None:
    recorded = [{"micro": [{"batch": micro[0]}]} for micro in batches()]
    assert data_cause(change(batches()), recorded).startswith(words)


def test_another_order_after_an_evaluation_that_draws_is_not_a_mistake_of_the_sampler() -> None:
    recorded = [{"micro": [{"batch": micro[0]}]} for micro in batches()]
    cause = data_cause(shuffled(batches()), recorded, [1])
    assert cause.startswith("another order from run 2 of the loop on: before it, a statement")
    assert "--updates 6" in cause
