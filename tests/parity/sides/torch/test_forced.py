"""Layers fed with the truth's inputs: each shows its own error."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from migrate.parity.dump.reference import Forced
from migrate.parity.ground.alignment import LayerAlignment, Pair, TensorPair
from migrate.parity.ground.settings import TRUTH, SideSettings
from tests.parity.sides.torch.torch_made import (
    Attention,
    Convolutions,
    Deep,
    Recurrent,
    Reused,
    captured,
    errors,
    floats,
    inputs_for,
    local_errors,
    runner,
    same_model,
)


def test_the_local_error_does_not_grow_with_depth(tmp_path: Path) -> None:
    torch.manual_seed(0)
    side = runner(Deep())
    free, fed = local_errors(side, side, floats(tmp_path, "x", (64, 16)), tmp_path)
    assert all(error < 2.5e-7 for error in fed.values())
    # What a block adds to the truth's outputs of its layers is one addition.
    blocks = [fed[f"blocks.{number}"] for number in range(4)]
    assert max(blocks) < 6e-8
    assert max(blocks) < 2 * min(blocks)
    assert free["blocks.3"] > 1.5 * free["blocks.0"]


def test_a_fault_shows_in_its_layer_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    right, wrong = Deep(), Deep()
    wrong.load_state_dict(right.state_dict())
    wrong.blocks[2].norm.eps = 1e-3
    free, fed = local_errors(
        runner(wrong), runner(right), floats(tmp_path, "x", (64, 16)), tmp_path
    )
    assert {name for name, error in fed.items() if error > 1e-6} == {"blocks.2.norm"}
    assert free["blocks.3"] > 1e-6


def test_a_fault_between_layers_shows_in_the_one_that_holds_them(tmp_path: Path) -> None:
    class Tanh(nn.Module):
        def __init__(self, of: Any) -> None:
            super().__init__()
            self.norm, self.up, self.down = of.norm, of.up, of.down

        def forward(self, x: Any) -> Any:
            y = nn.functional.gelu(self.up(self.norm(x)), approximate="tanh")
            return x + self.down(y)

    torch.manual_seed(0)
    right = Deep()
    wrong = copy.deepcopy(right)
    wrong.blocks[1] = Tanh(wrong.blocks[1])
    inputs = floats(tmp_path, "x", (64, 16))
    truth = captured(runner(right), inputs, tmp_path / "truth", TRUTH)
    forced = Forced(truth.folder, same_model(truth))
    fed = captured(runner(wrong), inputs, tmp_path / "fed", forced=forced)
    # Fed with the truth's tensors `down` is right, and the block goes on with the truth's output: what it
    # computes between shows in what it gives.
    assert max(errors(fed, truth).values()) < 1e-6
    assert {name for name, error in errors(fed, truth, "arguments").items() if error > 1e-6} == {
        "blocks.1.down"
    }


@pytest.mark.parametrize("make", [Convolutions, Recurrent, Attention, Reused])
def test_every_call_of_every_kind_is_fed(tmp_path: Path, make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    side = runner(make())
    inputs = inputs_for(side, tmp_path)
    truth = captured(side, inputs, tmp_path / "truth", TRUTH)
    forced = Forced(truth.folder, same_model(truth))
    fed = captured(side, inputs, tmp_path / "fed", forced=forced)
    assert len(truth.calls) == len(fed.calls)
    assert max(errors(fed, truth).values()) < 1e-6
    assert max(errors(fed, truth, "arguments").values()) < 1e-6
    assert not any("does not fit" in note for note in fed.facts.notes)
    assert fed.outputs == {}


def test_in_place_writes_reach_the_caller(tmp_path: Path) -> None:
    """`self.relu(x)` without using its result: the caller goes on with the truth's."""
    torch.manual_seed(0)
    wrong, right = Convolutions(), Convolutions()
    wrong.load_state_dict(right.state_dict())
    with torch.no_grad():
        wrong.second.weight.mul_(2.0)  # the free relu would hand on twice as much
    inputs = floats(tmp_path, "x", (2, 3, 8, 8))
    truth = captured(runner(right), inputs, tmp_path / "truth", TRUTH)
    # All but `last` have a partner: what that one is given comes from what the caller goes on with.
    alignment = same_model(truth)
    pairs = tuple(pair for pair in alignment.pairs if pair.layer != "last")
    forced = Forced(truth.folder, dataclasses.replace(alignment, pairs=pairs))
    fed = errors(captured(runner(wrong), inputs, tmp_path / "fed", forced=forced), truth)
    assert fed["second"] > 0.5
    assert fed["relu"] < 1e-6
    assert fed["last"] < 1e-6


def test_the_truth_is_laid_as_the_side_lies(tmp_path: Path) -> None:
    class Last(nn.Module):
        """A convolution that takes and gives channels last."""

        def __init__(self, conv: nn.Conv2d) -> None:
            super().__init__()
            self.conv = conv

        def forward(self, x: Any) -> Any:
            return self.conv.forward(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)

    torch.manual_seed(0)
    right = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3))
    wrong = nn.Sequential(Last(right[0]), Last(right[1]))
    first = floats(tmp_path / "a", "input", (2, 3, 8, 8))
    second = floats(tmp_path / "b", "input", (2, 8, 8, 3))  # other numbers: only fed it can match
    truth = captured(runner(right), first, tmp_path / "truth", TRUTH)
    turn = (0, 2, 3, 1)
    pairs = tuple(
        Pair(
            name,
            name,
            "weights",
            arguments=(TensorPair("0", "0", turn),),
            outputs=(TensorPair("", "", turn),),
        )
        for name in ("0", "1")
    )
    forced = Forced(truth.folder, LayerAlignment(pairs))
    fed = captured(runner(wrong), second, tmp_path / "fed", forced=forced)
    for call in fed.calls:
        (wanted,) = (
            one.outputs[0]
            for one in truth.calls
            if (one.layer, one.input) == (call.layer or "1", call.input)
        )
        np.testing.assert_allclose(
            fed.tensor(call.outputs[0]), truth.tensor(wanted).transpose(turn), atol=1e-6
        )


def test_what_does_not_fit_is_left_and_noted(tmp_path: Path) -> None:
    side = runner(Deep())
    truth = captured(side, floats(tmp_path / "a", "x", (3, 16)), tmp_path / "truth", TRUTH)
    forced = Forced(truth.folder, same_model(truth))
    fed = captured(side, floats(tmp_path / "b", "x", (4, 16)), tmp_path / "fed", forced=forced)
    assert fed.facts.notes[0] == (
        "the model: the truth's x does not fit (shape [3, 16] instead of [4, 16])"
    )
    (call,) = (one for one in fed.of("") if one.input == 0)
    assert call.outputs[0].shape == (4, 16)


def test_bfloat16_is_fed_with_the_rounded_truth(tmp_path: Path) -> None:
    torch.manual_seed(0)
    side = runner(Deep())
    inputs = floats(tmp_path, "x", (64, 16))
    _, fed = local_errors(side, side, inputs, tmp_path, SideSettings(dtype="bfloat16"))
    assert all(1e-4 < error < 6e-3 for error in fed.values())


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    return BertModel(
        BertConfig(
            vocab_size=100,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=40,
        )
    )


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=100,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            intermediate_size=32,
            max_position_embeddings=40,
        )
    )


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTModel

    return ViTModel(
        ViTConfig(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            image_size=16,
            patch_size=4,
        )
    )


def whisper() -> nn.Module:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    return WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=60,
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            max_source_positions=10,
            max_target_positions=12,
            num_mel_bins=4,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=3,
        )
    )


@pytest.mark.parametrize("make", [bert, llama, vit, whisper])
def test_models_of_transformers(tmp_path: Path, make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    side = runner(make())
    free, fed = local_errors(side, side, inputs_for(side, tmp_path, 1), tmp_path)
    assert max(fed.values()) < 1e-6
    assert free[""] < 2e-6
    assert len(fed) > 10
