"""Gradients, training and decoding of a torch model against the same in Flax."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import torch

from converters.layers.layout import Permute
from converters.mapping.leaves import Piece
from migrate.parity.align.weight_pairs import WeightPair
from migrate.parity.ground.alignment import TensorPair
from migrate.parity.ground.settings import SideSettings
from migrate.parity.inputs.make import make_inputs
from migrate.parity.inputs.set import InputSet
from migrate.parity.sides.jax.runner import JaxRunner
from migrate.parity.sides.side import ComparedSide, InProcess
from migrate.parity.tasks.batch import compare_batches
from migrate.parity.tasks.generation import compare_generation
from migrate.parity.tasks.gradients import compare_gradients
from migrate.parity.tasks.logits import compare_logits
from migrate.parity.tasks.party import Parties
from migrate.parity.tasks.training import TrainingOptions, compare_training
from tests.parity.tasks.parties_made import Image, Words, parties, seeded, tokens


class FlaxWords(nn.Module):
    """`Words` in linen."""

    @nn.compact
    def __call__(self, input_ids: Any) -> dict[str, Any]:
        seen = jnp.cumsum(nn.Embed(50, 16, name="words")(input_ids), 1)
        counts = jnp.arange(1, input_ids.shape[1] + 1, dtype=seen.dtype)[:, None]
        made = nn.relu(nn.Dense(32, name="inner")(seen / counts))
        return {"logits": nn.Dense(50, name="head")(made)}


class FlaxImage(nn.Module):
    """`Image` in linen: channels last."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Conv(4, (3, 3), padding="VALID", name="conv")(x)


def flax_side(
    module: nn.Module, source: torch.nn.Module, pairs: tuple[WeightPair, ...], work: Path
) -> ComparedSide:
    from safetensors.numpy import save_file

    work.mkdir()
    runner = JaxRunner(module, "linen", type(module).__name__)
    state = {name: value.detach().numpy() for name, value in source.state_dict().items()}
    leaves = {
        pair.name: pair.pieces[0].layout.apply(state[pair.truths[0]]).copy() for pair in pairs
    }
    save_file(leaves, work / "weights.safetensors")
    runner.load_weights(work / "weights.safetensors")
    return InProcess(runner, work)


def pair(name: str, truth: str, *axes: int) -> WeightPair:
    piece = Piece(truth, Permute(axes)) if axes else Piece(truth)
    return WeightPair(f"params/{name}", (truth,), (piece,))


WORDS = (
    pair("words/embedding", "words.weight"),
    pair("inner/kernel", "inner.weight", 1, 0),
    pair("inner/bias", "inner.bias"),
    pair("head/kernel", "head.weight", 1, 0),
    pair("head/bias", "head.bias"),
)
IMAGE = (pair("conv/kernel", "conv.weight", 2, 3, 1, 0), pair("conv/bias", "conv.bias"))


def words(work: Path) -> Parties:
    torch_model = seeded(Words)
    side = flax_side(FlaxWords(), torch_model, WORDS, work / "flax")
    inputs: InputSet = tokens(work)
    return parties(torch_model, side, inputs, work, b_weights=WORDS)


def test_words(tmp_path: Path) -> None:
    made = words(tmp_path)
    section = compare_gradients(made)
    assert section.passed, section.checks
    # The rows are the truth's parameters, whatever the other side calls them.
    assert {check.name for check in section.checks[1:]} == {
        f"gradient {name}" for name, _ in seeded(Words).named_parameters()
    }
    assert all(0 < (check.b or 0) < 1e-5 for check in section.checks)
    logits = compare_logits(made)
    assert logits is not None
    assert logits.passed
    assert compare_generation(made, 4).passed
    assert compare_batches(made).passed
    for optimizer in ("momentum", "adamw"):
        trained = compare_training(made, TrainingOptions(6, optimizer, 1e-2))
        assert trained.passed, (optimizer, trained.checks)


def test_a_transposed_kernel_has_another_gradient(tmp_path: Path) -> None:
    made = words(tmp_path)
    wrong = (*WORDS[:3], pair("head/kernel", "head.weight"), WORDS[4])
    section = compare_gradients(
        dataclasses.replace(made, b=dataclasses.replace(made.b, weights=wrong))
    )
    (bad,) = [check for check in section.checks if not check.passed]
    assert bad.name == "gradient params/head/kernel of B"
    assert "shape" in bad.note


def test_images_are_channels_last(tmp_path: Path) -> None:
    torch_model = seeded(Image)
    side = flax_side(FlaxImage(), torch_model, IMAGE, tmp_path / "flax")
    inputs = make_inputs(["x=float32[2,3,6,6]"], 4, 0, tmp_path / "inputs")
    made = parties(
        torch_model,
        side,
        inputs,
        tmp_path,
        b_settings=SideSettings(transposed=("x",)),
        b_outputs=(TensorPair("", "", (0, 2, 3, 1)),),
        b_weights=IMAGE,
    )
    section = compare_gradients(made)
    assert section.passed, section.checks
    assert [check.name for check in section.checks] == [
        "all parameters",
        "gradient conv.weight",
        "gradient conv.bias",
        "gradient of input x",
    ]
    assert compare_training(made, TrainingOptions(5)).passed
