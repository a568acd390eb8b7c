"""Rollouts of a program with given values and other seeds, over a small data.py."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from migrate.train.write.texts import OF_ROLLOUT, carried_text, data_text

LOOP = """
class Sampler:
    def __init__(self, model):
        self.model = model
        self.rng = np.random.default_rng(5)

    @torch.no_grad()
    def play(self, prompts):
        tokens, noted = prompts, []
        for _ in range(3):
            logits = self.model(torch.nn.functional.one_hot(tokens[:, -1], 4).float())
            tokens = torch.cat([tokens, torch.multinomial(logits.softmax(-1), 1)], 1)
            noted.append(tokens[:, -1:].float() * 2)
            luck = torch.rand(6)
        old = self.model(torch.nn.functional.one_hot(tokens, 4).float())
        return {"tokens": tokens, "old": old, "noted": torch.cat(noted, 1), "luck": luck}


class Game:
    def __init__(self, start, moves, worth):
        self.start, self.moves, self.worth = start, moves, worth


def games(model, rng):
    # Moves of several lengths: 0 ends a game, and fills its row.
    board = torch.from_numpy(rng.integers(1, 4, (6, 2)))
    over = torch.zeros(6, dtype=torch.bool)
    for _ in range(4):
        logits = model(torch.nn.functional.one_hot(board[:, -1], 4).float())
        move = torch.multinomial(logits.softmax(-1), 1).squeeze(1).masked_fill(over, 0)
        over = over | (move == 0)
        board = torch.cat([board, move[:, None]], 1)
    worth = model(torch.nn.functional.one_hot(board, 4).float()).detach().sum(-1)
    kept = []
    for row in range(6):
        moves = board[row, 2:]
        length = min(int((moves != 0).sum()) + 1, 4)
        kept.append(Game(board[row, :2], moves[:length], worth[row, :length]))
    rng.shuffle(kept)
    return kept


def train(sampler, frozen):
    for round in range(2):
        kept = games(sampler.model, sampler.rng)
        prompts = torch.from_numpy(sampler.rng.integers(0, 4, (6, 2)))
        names = [f"row {n}" for n in prompts[:, 0].tolist()]
        roll = sampler.play(prompts)
        score = roll["tokens"].float().mean(1) + frozen(roll["old"]).mean((1, 2))
        yield {"roll": roll}
        yield None
        hand_over({"model": sampler.model})


def micro_batches():
    torch.manual_seed(1)
    model, frozen = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)
    sampler = Sampler(model)
    hand_over({"model": model})
    yield from train(sampler, frozen)
"""


@pytest.fixture
def rollouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    modules = {}
    text = data_text(LOOP, "train.py", repr(str(tmp_path)), False, rollouts=True)
    text = text.replace(f"FOLDER = {str(tmp_path)!r}", f"FOLDER = Path({str(tmp_path)!r})")
    for name, source in (("data", text), ("rollouts", carried_text(OF_ROLLOUT))):
        file = tmp_path / f"{name}.py"
        file.write_text(source)
        modules[name] = types.ModuleType(name)
        modules[name].__file__ = str(file)
        monkeypatch.setitem(sys.modules, name, modules[name])
        exec(compile(source, str(file), "exec"), vars(modules[name]))
    monkeypatch.setattr(sys, "path", list(sys.path))
    return modules["rollouts"]


@pytest.fixture
def weights() -> Any:
    generator = np.random.default_rng(0)
    arrays = {"model.weight": generator.standard_normal((4, 4), np.float32)}
    arrays["model.bias"] = np.zeros(4, np.float32)
    return lambda: arrays


def test_a_seed_decides_prompts_and_samples(rollouts: Any, weights: Any) -> None:
    first, again, other = (rollouts.rollout(weights, seed) for seed in (1, 1, 2))
    for name in ("train:prompts", "roll.tokens", "score"):
        np.testing.assert_array_equal(first[name], again[name])
        assert not np.array_equal(first[name], other[name])
    assert "roll.missing" not in first
    with pytest.raises(KeyError, match="no variable nothing"):
        first["nothing"]


def test_the_first_rollout_has_the_given_weights(rollouts: Any, weights: Any) -> None:
    found = rollouts.rollout(weights, 1)
    one_hot = np.eye(4, dtype=np.float32)[found["roll.tokens"]]
    np.testing.assert_allclose(found["roll.old"], one_hot @ weights()["model.weight"].T, rtol=1e-5)


def test_given_samples_decide_what_is_computed_from_them(rollouts: Any, weights: Any) -> None:
    wanted = rollouts.rollout(weights, 7)
    sampled = {name: wanted[name] for name in ("train:roll.tokens", "names")}
    found = rollouts.experience(weights, sampled)
    # What is noted of each token while they are sampled is that of the given ones.
    for name in ("roll.tokens", "roll.old", "score", "names", "roll.noted", "prompts"):
        np.testing.assert_array_equal(found[name], wanted[name])
    with pytest.raises(ValueError, match="depends on more than the given values"):
        found["roll.luck"]


def test_given_items_of_a_list_that_is_shuffled(rollouts: Any, weights: Any) -> None:
    wanted = rollouts.rollout(weights, 7)
    sampled = {name: wanted[name] for name in ("kept.*.start", "kept.*.moves")}
    assert len({len(moves) for moves in sampled["kept.*.moves"]}) > 1
    found = rollouts.experience(weights, sampled)
    for name in (*sampled, "kept.*.worth"):
        for ours, given in zip(found[name], wanted[name], strict=True):
            np.testing.assert_allclose(ours, given, rtol=1e-6)
    with pytest.raises(ValueError, match="5 items, the script has 6"):
        rollouts.experience(weights, {"kept.*.start": sampled["kept.*.start"][:5]})


def test_frozen_modules_of_the_loop_have_the_given_weights(rollouts: Any, weights: Any) -> None:
    own = rollouts.rollout(weights, 1)
    zero = {"weight": np.zeros((2, 4), np.float32), "bias": np.ones(2, np.float32)}
    found = rollouts.rollout(weights, 1, {"reference": zero})
    np.testing.assert_allclose(found["score"], own["roll.tokens"].mean(1) + 1, rtol=1e-5)
    with pytest.raises(ValueError, match="0 modules of the loop have parameters like critic"):
        rollouts.rollout(weights, 1, {"critic": {"weight": np.zeros(3)}})
    assert torch.is_grad_enabled()
