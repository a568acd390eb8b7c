"""Gradients, training and greedy decoding on the torch side."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import nn

from migrate.parity.ground.errors import InputsError, ParityError
from migrate.parity.ground.requests import Training
from migrate.parity.ground.settings import TRUTH, SideSettings
from migrate.parity.inputs.set import InputSet, write_inputs
from migrate.parity.sides.torch.runner import TorchRunner
from tests.parity.sides.torch.torch_made import Deep, Recurrent, arrays, floats, inputs_for, runner


def cotangents(folder: Path, key: str, shape: tuple[int, ...], count: int = 2) -> Path:
    folder.mkdir()
    for number, one in enumerate(arrays(shape, count, 7)):
        save_file({key: one}, folder / f"{number:03d}.safetensors")
    return folder


def test_gradients_are_those_of_the_sum_with_the_cotangent(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Deep()
    model.unused = nn.Linear(2, 2)
    side = runner(model)
    inputs = floats(tmp_path, "x", (3, 16))
    seeds = cotangents(tmp_path / "seeds", "output", (3, 16))
    side.gradients(TRUTH, inputs, seeds, tmp_path / "into")
    found = load_file(tmp_path / "into" / "001.safetensors")
    wide = Deep().double()
    wide.load_state_dict({k: v for k, v in model.state_dict().items() if "unused" not in k})
    x = torch.tensor(inputs[1]["x"], dtype=torch.float64, requires_grad=True)
    seed = torch.tensor(load_file(seeds / "001.safetensors")["output"])
    (wide(x) * seed).sum().backward()
    wanted = {f"weights/{name}": p.grad.numpy() for name, p in wide.named_parameters()}
    wanted["inputs/x"] = x.grad.numpy()
    assert sorted(found) == sorted(wanted)
    for name, gradient in wanted.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-12, atol=1e-13, err_msg=name)
    assert all(p.grad is None for p in model.parameters())


def test_gradients_of_tied_weights_come_under_each_name(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: Any) -> Any:
            return {"logits": self.head(self.embed(ids))}

    side = runner(Tied())
    inputs = inputs_for(side, tmp_path, 1)
    seeds = cotangents(tmp_path / "seeds", "logits", (4, 32, 10), 1)
    side.gradients(SideSettings(dtype="bfloat16"), inputs, seeds, tmp_path / "into")
    found = load_file(tmp_path / "into" / "000.safetensors")
    assert sorted(found) == ["weights/embed.weight", "weights/head.weight"]
    np.testing.assert_array_equal(found["weights/embed.weight"], found["weights/head.weight"])
    assert found["weights/head.weight"].dtype == np.float32


def test_the_emulated_precision_reaches_the_backward_pass(tmp_path: Path) -> None:
    side = runner(Deep())
    inputs = floats(tmp_path, "x", (64, 16), 1)
    seeds = cotangents(tmp_path / "seeds", "output", (64, 16), 1)
    found = {}
    for name, settings in (
        ("t", TRUTH),
        ("f", SideSettings()),
        ("d", SideSettings(precision="default")),
    ):
        side.gradients(settings, inputs, seeds, tmp_path / name)
        found[name] = load_file(tmp_path / name / "000.safetensors")["weights/blocks.3.down.weight"]
    norm = np.linalg.norm(found["t"])
    assert np.linalg.norm(found["f"] - found["t"]) / norm < 1e-6
    assert 1e-4 < np.linalg.norm(found["d"] - found["t"]) / norm < 1e-2


def test_a_cotangent_that_does_not_fit_is_one_line(tmp_path: Path) -> None:
    side = runner(Deep())
    inputs = floats(tmp_path, "x", (3, 16))
    with pytest.raises(ParityError, match="has no output logits"):
        side.gradients(
            SideSettings(), inputs, cotangents(tmp_path / "a", "logits", (3, 16)), tmp_path / "into"
        )
    with pytest.raises(ParityError, match=r"does not fit \(shape \[2, 16\]"):
        side.gradients(
            SideSettings(), inputs, cotangents(tmp_path / "b", "output", (2, 16)), tmp_path / "into"
        )


class Noisy(nn.Module):
    """Everything that differs between train() and eval()."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)
        self.last, self.drop_rate = nn.Linear(8, 4), 0.5

    def forward(self, x: Any) -> Any:
        x = nn.functional.dropout(self.drop(self.norm(self.first(x))), 0.9, self.training)
        return self.last(nn.functional.dropout(x, self.drop_rate, training=self.training))


def training(folder: Path, optimizer: str, **changes: Any) -> Training:
    folder.mkdir(exist_ok=True)
    for number, one in enumerate(arrays((12, 4), 2, 3)):
        save_file({"target": one}, folder / f"{number:03d}.safetensors")
    values: dict[str, Any] = {"steps": 3, "order": (0, 1, 0), "loss": "mse", "output": ""}
    return Training(optimizer=optimizer, learning_rate=0.05, targets=folder, **values | changes)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05),
    "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, 0.05),
    "adamw": lambda p: torch.optim.AdamW(p, 0.05, weight_decay=0.01),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_is_the_plain_loop_without_dropout(tmp_path: Path, optimizer: str) -> None:
    torch.manual_seed(0)
    model = Noisy()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    inputs = floats(tmp_path, "x", (12, 16))
    losses = runner(model).train(SideSettings(), inputs, training(tmp_path / "targets", optimizer))
    assert not model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    steps = OPTIMIZERS[optimizer](model.parameters())
    wanted = []
    for number in (0, 1, 0):
        x = torch.tensor(inputs[number]["x"])
        target = torch.tensor(
            load_file(tmp_path / "targets" / f"{number:03d}.safetensors")["target"]
        )
        model.norm.train()
        loss = nn.functional.mse_loss(model(x), target)
        steps.zero_grad()
        loss.backward()
        steps.step()
        wanted.append(loss.item())
    assert losses == pytest.approx(wanted, rel=1e-6)
    assert len(set(losses)) == 3


def test_cross_entropy_is_torchs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    side = runner(Recurrent())
    inputs = inputs_for(side, tmp_path)
    folder = tmp_path / "targets"
    folder.mkdir()
    for number in range(2):
        target = np.random.default_rng(number).integers(0, 5, (4, 32))
        save_file({"target": target}, folder / f"{number:03d}.safetensors")
    asked = Training(2, (1, 0), "sgd", 0.1, "cross_entropy", "logits", folder)
    (first, _) = side.train(SideSettings(), inputs, asked)
    with torch.no_grad():
        logits = side.module(torch.tensor(inputs[1]["ids"]))["logits"]
    target = torch.tensor(load_file(folder / "001.safetensors")["target"])
    wanted = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
    assert first == pytest.approx(float(wanted), rel=1e-6)


def test_a_loss_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "loss.py").write_text(
        "def l1(output, target):\n    return abs(output - target).mean()\n"
    )
    inputs = floats(tmp_path, "x", (12, 16))
    own = training(tmp_path / "targets", "sgd", loss=f"{tmp_path / 'loss.py'}:l1")
    losses = runner(Noisy()).train(SideSettings(), inputs, own)
    assert losses[0] > 0
    missing = training(tmp_path / "targets", "sgd", loss=f"{tmp_path / 'loss.py'}:l2")
    with pytest.raises(ParityError, match="has no l2"):
        runner(Noisy()).train(SideSettings(), inputs, missing)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"output": "logits"}, "has no output logits"), ({"optimizer": "lion"}, "no optimizer lion")],
)
def test_what_cannot_be_trained_is_one_line(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    changes = {"optimizer": "sgd"} | changes
    asked = training(tmp_path / "targets", changes.pop("optimizer"), **changes)
    with pytest.raises(ParityError, match=message):
        runner(Noisy()).train(SideSettings(), floats(tmp_path, "x", (12, 16)), asked)


def llama() -> TorchRunner:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=60,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=16,
        max_position_embeddings=24,
        eos_token_id=None,
        pad_token_id=0,
        initializer_range=0.5,
    )
    return runner(LlamaForCausalLM(config))


def prompts(folder: Path) -> InputSet:
    ids = np.random.default_rng(0).integers(1, 60, (2, 8))
    mask = np.ones_like(ids)
    ids[1, 5:], mask[1, 5:] = 0, 0
    return write_inputs(folder / "inputs", [{"input_ids": ids, "attention_mask": mask}])


def test_greedy_decoding_is_that_of_transformers(tmp_path: Path) -> None:
    side, inputs = llama(), prompts(tmp_path)
    made = side.generate(SideSettings(), inputs, 6, "logits")
    for row, length in ((0, 8), (1, 5)):
        ids = torch.tensor(inputs[0]["input_ids"][row : row + 1, :length])
        with torch.no_grad():
            wanted = side.module.generate(ids, max_new_tokens=6, do_sample=False)[0, length:]
        assert made.tokens[0][row] == tuple(wanted.tolist())
        assert len(made.margins[0][row]) == 6
        assert min(made.margins[0][row]) > 0


def test_decoding_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    side, inputs = llama(), prompts(tmp_path)
    with pytest.raises(ParityError, match="32 tokens are more than its 24 positions"):
        side.generate(SideSettings(), inputs, 24, "logits")
    with pytest.raises(ParityError, match=r"has no output scores.*its outputs are: logits"):
        side.generate(SideSettings(), inputs, 2, "scores")
    with pytest.raises(InputsError, match="decoding needs input_ids"):
        runner(Deep()).generate(SideSettings(), floats(tmp_path / "b", "x", (3, 16)), 2, "")


class Frozen(nn.Module):
    """Statistics of one's own that stay, others that training changes, and those of a layer of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.ones(4))
        self.register_buffer("seen", torch.zeros(4))
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen.lerp_(x.mean(0), 0.1)
        return self.norm(x - self.running_mean)


def test_statistics_are_those_that_training_changes(tmp_path: Path) -> None:
    inputs = write_inputs(tmp_path / "inputs", [{"x": np.eye(4, dtype=np.float32)}])
    (tmp_path / "cotangents").mkdir()
    save_file({"output": np.ones((4, 4), np.float32)}, tmp_path / "cotangents" / "000.safetensors")
    runner(Frozen()).in_training(TRUTH, inputs, tmp_path / "cotangents", tmp_path / "found", 5)
    found = load_file(tmp_path / "found" / "statistics.safetensors")
    names = {"weights/seen", "weights/norm.running_mean", "weights/norm.running_var"}
    assert set(found) == names


class Checkpointed(nn.Module):
    """A model that asks for the gradient of what it is given, as speech models do in training."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = x[:, None]
        if self.training:
            made.requires_grad = True
        return self.one(made)


def test_a_model_may_ask_for_a_gradient_that_is_there(tmp_path: Path) -> None:
    inputs = write_inputs(tmp_path / "inputs", [{"x": np.ones((2, 4), np.float32)}])
    seeds = cotangents(tmp_path / "cotangents", "output", (2, 1, 4), 1)
    runner(Checkpointed()).in_training(TRUTH, inputs, seeds, tmp_path / "found", 5)
    found = load_file(tmp_path / "found" / "000.safetensors")
    assert found["inputs/x"].any()


class InPlace(nn.Module):
    """Changes a tensor that the gradient of its input needs, and the input itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x -= 1
        scale = torch.sqrt(x.var(1, keepdim=True) + 0.1)
        x = x * 2
        x /= scale
        return self.norm(self.layer(x)) * scale


@pytest.mark.parametrize("trains", [False, True])
def test_gradients_through_changes_in_place(tmp_path: Path, trains: bool) -> None:
    torch.manual_seed(0)
    module = InPlace().train(trains)
    array = np.arange(12, dtype=np.float32).reshape(4, 3) ** 1.5 / 10
    inputs = write_inputs(tmp_path / "inputs", [{"x": array}])
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    save_file({"output": np.sin(array)}, seeds / "000.safetensors")
    # The same, with nothing changed in place.
    x = torch.tensor(array, dtype=torch.float64, requires_grad=True)
    same = copy.deepcopy(module).double()
    moved = x - 1
    scale = torch.sqrt(moved.var(1, keepdim=True) + 0.1)
    (
        same.norm(same.layer(moved * 2 / scale)) * scale * torch.tensor(np.sin(array))
    ).sum().backward()

    side = runner(module)
    if trains:
        side.in_training(TRUTH, inputs, seeds, tmp_path / "into", 1)
    else:
        side.gradients(TRUTH, inputs, seeds, tmp_path / "into")
    found = load_file(tmp_path / "into" / "000.safetensors")
    np.testing.assert_allclose(found["inputs/x"], x.grad, rtol=1e-9)
    np.testing.assert_allclose(found["weights/layer.weight"], same.layer.weight.grad, rtol=1e-9)
