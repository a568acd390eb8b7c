"""The torch side beside its captures: what it is, its weights, the inputs that it suggests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from migrate.parity.ground.errors import InputsError, ParityError
from migrate.parity.ground.settings import TRUTH, SideSettings
from tests.parity.sides.torch.torch_made import (
    Attention,
    Convolutions,
    Deep,
    Recurrent,
    captured,
    floats,
    inputs_for,
    runner,
)


def test_facts() -> None:
    side = runner(Deep(), "deep.py:make")
    facts = side.facts(SideSettings())
    assert (facts.framework, facts.target, facts.device) == ("torch", "deep.py:make", "cpu")
    assert (facts.dtype, facts.precision, facts.emulated) == ("float32", "", False)
    assert facts.versions == {"torch": torch.__version__.partition("+")[0]} or facts.versions == {
        "torch": torch.__version__
    }
    emulated = side.facts(SideSettings(precision="default"))
    assert (emulated.precision, emulated.emulated) == ("default", True)
    assert side.facts(TRUTH).dtype == "float64"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_one_line() -> None:
    with pytest.raises(ParityError, match="this machine has no CUDA device"):
        runner(Deep()).facts(SideSettings(device="cuda"))


def test_arguments_are_those_that_can_be_tensors() -> None:
    class Options(nn.Module):
        def forward(
            self,
            ids: torch.Tensor,
            mask: torch.Tensor | None = None,
            bias: Any = None,
            flag: bool = False,
            count: int | None = None,
            unsaid=True,
            **more: Any,
        ) -> Any:
            return ids

    assert runner(Options()).arguments() == (("ids", True), ("mask", False), ("bias", False))


def test_weights_come_back(tmp_path: Path) -> None:
    torch.manual_seed(0)
    one, two = runner(Convolutions()), runner(Convolutions())
    inputs = floats(tmp_path, "x", (2, 3, 8, 8))
    captured(two, inputs, tmp_path / "before")  # a copy of the old weights must not be used again
    one.save_weights(tmp_path / "weights.safetensors")
    two.load_weights(tmp_path / "weights.safetensors")
    for key, value in one.module.state_dict().items():
        assert torch.equal(value, two.module.state_dict()[key]), key
    a = captured(one, inputs, tmp_path / "a")
    b = captured(two, inputs, tmp_path / "b")
    np.testing.assert_array_equal(a.tensor(a.outputs[0][0]), b.tensor(b.outputs[0][0]))


def test_lazy_modules_become_what_the_first_input_makes_them(tmp_path: Path) -> None:
    side = runner(nn.Sequential(nn.LazyLinear(3), nn.ReLU()))
    inputs = floats(tmp_path, "input", (2, 5))
    side.prepare(SideSettings(), inputs)
    weight = side.module[0].weight
    assert weight.shape == (3, 5)
    side.prepare(SideSettings(), inputs)
    assert side.module[0].weight is weight
    captured(side, inputs, tmp_path / "dump")


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Any) -> Any:
        return self.head(self.embed(ids))


def test_tied_weights_are_written_under_each_name_and_need_one(tmp_path: Path) -> None:
    side = runner(Tied())
    side.save_weights(tmp_path / "all.safetensors")
    assert sorted(load_file(tmp_path / "all.safetensors")) == ["embed.weight", "head.weight"]
    save_file({"head.weight": torch.ones(10, 4)}, tmp_path / "one.safetensors")
    side.load_weights(tmp_path / "one.safetensors")
    assert torch.equal(side.module.embed.weight, torch.ones(10, 4))


def test_weights_that_do_not_fit_are_told_in_one_line(tmp_path: Path) -> None:
    side = runner(nn.Sequential(*[nn.Linear(2, 2) for _ in range(4)]))
    save_file(
        {"0.weight": torch.ones(3, 2), "0.bias": torch.ones(2), "more": torch.ones(1)},
        tmp_path / "weights.safetensors",
    )
    before = side.module[0].bias.clone()
    with pytest.raises(ParityError) as caught:
        side.load_weights(tmp_path / "weights.safetensors")
    assert "6 missing: 1.weight, 1.bias, 2.weight, …" in caught.value.what
    assert "1 surplus: more" in caught.value.what
    assert "1 misshapen: 0.weight ([3, 2] for [2, 2])" in caught.value.what
    assert torch.equal(side.module[0].bias, before)


def test_a_file_that_is_no_safetensors_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("no")
    with pytest.raises(ParityError, match="weights"):
        runner(Deep()).load_weights(tmp_path / "weights")


@pytest.mark.parametrize(
    ("make", "name", "shape"),
    [
        (lambda: nn.Sequential(nn.Linear(7, 3)), "input", (8, 7)),
        (Convolutions, "x", (2, 3, 32, 32)),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 28 * 28, 2)), "input", (2, 3, 28, 28)),
        (Recurrent, "ids", (4, 32)),
        (lambda: nn.LSTM(5, 3), "input", (32, 4, 5)),
        (Attention, "x", (4, 32, 16)),
        (lambda: nn.TransformerEncoderLayer(8, 2, 16), "src", (4, 32, 8)),
    ],
)
def test_the_first_layer_tells_the_inputs(
    tmp_path: Path, make: Callable[[], nn.Module], name: str, shape: tuple[int, ...]
) -> None:
    inputs = inputs_for(runner(make()), tmp_path, 3)
    assert inputs.names == (name,)
    assert [inputs[number][name].shape for number in range(3)] == [shape] * 3
    assert len(set(inputs.described)) == 3
    assert not np.array_equal(inputs[0][name], inputs[1][name])


def test_the_inputs_are_drawn_by_the_seed(tmp_path: Path) -> None:
    side = runner(Deep())
    # LayerNorm comes first here.
    drawn = [
        side.suggest_inputs(1, seed, tmp_path / name)[0]["x"]
        for seed, name in ((0, "a"), (0, "b"), (1, "c"))
    ]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])


def test_two_required_arguments_must_be_said(tmp_path: Path) -> None:
    class Two(nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return x + y

    with pytest.raises(
        InputsError, match=r"it takes x, y.*--inputs 'x=float32\[2,3,32,32\]' --inputs 'y=…'"
    ):
        inputs_for(runner(Two()), tmp_path)


def test_a_model_whose_first_layer_misleads_must_be_said(tmp_path: Path) -> None:
    class Misleading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused, self.used = nn.Linear(3, 3), nn.Conv2d(1, 1, 3)

        def forward(self, x: Any) -> Any:
            return self.used(x)

    with pytest.raises(InputsError, match="input shapes are unknown"):
        inputs_for(runner(Misleading()), tmp_path)


def test_a_config_tells_tokens_and_masks(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=90,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=8,
        max_position_embeddings=600,
        pad_token_id=5,
    )
    inputs = inputs_for(runner(LlamaForCausalLM(config)), tmp_path, 8)
    assert inputs.names == ("input_ids", "attention_mask")
    short, long = inputs[0], inputs[7]
    assert short["input_ids"].shape == (2, 64)
    assert long["input_ids"].shape == (1, 500)
    for one in (short, long):
        real = one["attention_mask"] == 1
        assert not (one["input_ids"][real] == 5).any()
        assert (one["input_ids"][~real] == 5).all()
        assert one["input_ids"].max() < 90
    assert 0 < (short["attention_mask"] == 0).sum() <= 32


def test_a_config_that_tells_nothing_is_one_line(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = type("Config", (), {"to_dict": lambda self: {}})()

        def forward(self, waves: Any) -> Any:
            return waves

    with pytest.raises(InputsError, match="its config does not describe"):
        inputs_for(runner(Odd()), tmp_path)
