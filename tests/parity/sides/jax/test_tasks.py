"""Gradients, training and decoding of JAX sides, against torch and float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen as nn
from flax import nnx
from safetensors.numpy import load_file, save_file

from migrate.parity.ground.errors import InputsError, ParityError
from migrate.parity.ground.requests import Training
from migrate.parity.ground.settings import TRUTH, SideSettings
from migrate.parity.inputs.set import write_inputs
from migrate.parity.sides.jax.runner import JaxRunner
from migrate.parity.sides.torch.runner import TorchRunner
from tests.parity.sides.jax.jax_sides import RANDOM, given, relative


class Mlp(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        x = nn.Dense(6, name="first")(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9, name="norm")(x)
        x = nn.Dropout(0.5, deterministic=not train)(nn.tanh(x))
        return {"out": nn.Dense(3, name="second")(x)}


class NnxMlp(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(4, 6, rngs=rngs)
        self.norm = nnx.BatchNorm(6, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.second = nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return {"out": self.second(self.dropout(jnp.tanh(self.norm(self.first(x)))))}


class TorchMlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 6), torch.nn.Linear(6, 3)
        self.norm = torch.nn.BatchNorm1d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.norm(self.first(x))))


# torch's key → the pytree's path, without collection, and whether it is transposed.
NAMES = {
    "first.weight": "first/kernel",
    "first.bias": "first/bias",
    "norm.weight": "norm/scale",
    "norm.bias": "norm/bias",
    "norm.running_mean": "norm/mean",
    "norm.running_var": "norm/var",
    "second.weight": "second/kernel",
    "second.bias": "second/bias",
}


def path_of(key: str, kind: str) -> str:
    collection = "batch_stats" if "running" in key else "params"
    return NAMES[key] if kind == "nnx" else f"{collection}/{NAMES[key]}"


def both(kind: Any, folder: Path) -> tuple[JaxRunner, TorchMlp]:
    """A JAX side and the torch module with the same weights."""
    torch.manual_seed(0)
    module = TorchMlp()
    with torch.no_grad():
        module.norm.running_mean.normal_()
    arrays = {
        path_of(key, kind): np.ascontiguousarray(value.numpy().T)
        for key, value in module.state_dict().items()
        if key in NAMES
    }
    save_file(arrays, folder / "weights.safetensors")
    model: Any = Mlp() if kind == "linen" else NnxMlp(nnx.Rngs(0))
    runner = JaxRunner(model, kind, "model.py:Mlp")
    runner.load_weights(folder / "weights.safetensors")
    return runner, module.double()


@pytest.mark.parametrize("kind", ["linen", "nnx"])
def test_gradients_are_torchs(kind: Any, tmp_path: Path) -> None:
    runner, module = both(kind, tmp_path)
    inputs = given(tmp_path / "inputs", 1, x=(5, 4))
    cotangent = RANDOM(1).standard_normal((5, 3))
    (tmp_path / "cotangents").mkdir()
    save_file({"out": cotangent}, tmp_path / "cotangents" / "000.safetensors")
    runner.gradients(TRUTH, inputs, tmp_path / "cotangents", tmp_path / "into")
    found = load_file(tmp_path / "into" / "000.safetensors")
    x = torch.from_numpy(inputs[0]["x"]).double().requires_grad_()
    module.eval()(x).backward(torch.from_numpy(cotangent))
    assert relative(found["inputs/x"], x.grad) < 1e-12
    for key, parameter in module.named_parameters():
        mine = found.pop(f"weights/{path_of(key, kind)}")
        assert relative(mine, parameter.grad.numpy().T) < 1e-12
    assert set(found) == {"inputs/x"}


def test_a_cotangent_of_another_shape_is_told(tmp_path: Path) -> None:
    runner, _ = both("linen", tmp_path)
    (tmp_path / "cotangents").mkdir()
    save_file({"out": np.ones((5, 4))}, tmp_path / "cotangents" / "000.safetensors")
    inputs = given(tmp_path / "inputs", 1, x=(5, 4))
    with pytest.raises(ParityError, match=r"output out is \[5, 3\], its cotangent \[5, 4\]"):
        runner.gradients(SideSettings(), inputs, tmp_path / "cotangents", tmp_path / "into")


def optimizer_of(name: str, module: torch.nn.Module) -> torch.optim.Optimizer:
    parameters = module.parameters()
    if name == "adam":
        return torch.optim.Adam(parameters, 0.05)
    if name == "adamw":
        return torch.optim.AdamW(parameters, 0.05, weight_decay=0.01)
    return torch.optim.SGD(parameters, 0.05, momentum=0.9 if name == "momentum" else 0.0)


@pytest.mark.parametrize(
    ("kind", "optimizer", "loss"),
    [
        ("linen", "sgd", "mse"),
        ("nnx", "momentum", "mse"),
        ("linen", "adam", "cross_entropy"),
        ("nnx", "adamw", "cross_entropy"),
    ],
)
@pytest.mark.long_cases("linen-sgd-mse", "nnx-momentum-mse", "linen-adam-cross_entropy")
def test_training_is_torchs(kind: Any, optimizer: str, loss: str, tmp_path: Path) -> None:
    runner, module = both(kind, tmp_path)
    inputs = given(tmp_path / "inputs", 2, x=(5, 4))
    (tmp_path / "targets").mkdir()
    targets: list[Any] = []
    for number in range(2):
        random = RANDOM(number)
        target = random.integers(0, 3, 5) if loss == "cross_entropy" else random.normal(size=(5, 3))
        save_file({"target": target}, tmp_path / "targets" / f"{number:03d}.safetensors")
        targets.append(torch.from_numpy(target))
    order = (0, 1, 1, 0)
    training = Training(4, order, optimizer, 0.05, loss, "out", tmp_path / "targets")
    losses = runner.train(TRUTH, inputs, training)
    module.train()
    torchs, steps = [], optimizer_of(optimizer, module)
    for number in order:
        out = module(torch.from_numpy(inputs[number]["x"]).double())
        function = getattr(torch.nn.functional, f"{loss}_loss" if loss == "mse" else loss)
        value = function(out, targets[number])
        steps.zero_grad()
        value.backward()
        steps.step()
        torchs.append(float(value.detach()))
    assert losses == pytest.approx(torchs, rel=1e-10)
    assert losses == runner.train(TRUTH, inputs, training)


@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
@pytest.mark.long_cases("mse")
def test_what_is_not_counted_is_no_part_of_the_loss(loss: str, tmp_path: Path) -> None:
    """As on torch's side, in bfloat16 too, whose numbers cannot count to 299."""
    runner, module = both("linen", tmp_path)
    inputs = given(tmp_path / "inputs", 1, x=(300, 4))
    classes = loss == "cross_entropy"
    target = RANDOM(0).integers(0, 3, 300) if classes else RANDOM(0).normal(size=(300, 3))
    jaxs = Training(1, (0,), "sgd", 0.05, loss, "out", tmp_path)
    torchs = Training(1, (0,), "sgd", 0.05, loss, "", tmp_path)
    side = TorchRunner(module, "torch", "net.py:TorchMlp")

    def losses(settings: SideSettings, kept: int) -> tuple[float, float]:
        counted = np.broadcast_to((np.arange(300) < kept)[:, None], (300, 3))
        counted = counted[:, 0] if classes else counted
        arrays = {"target": target, "counted": np.ascontiguousarray(counted)}
        save_file(arrays, tmp_path / "000.safetensors")
        (mine,), (theirs,) = (
            runner.train(settings, inputs, jaxs),
            side.train(settings, inputs, torchs),
        )
        return mine, theirs

    module.train()
    out = module(torch.from_numpy(inputs[0]["x"]).double()).detach()
    function = getattr(torch.nn.functional, loss if classes else "mse_loss")
    for kept in (299, 7):
        wanted = float(function(out[:kept], torch.from_numpy(target[:kept])))
        assert losses(TRUTH, kept) == pytest.approx((wanted, wanted), rel=1e-6)
        assert losses(SideSettings(dtype="bfloat16"), kept) == pytest.approx(
            (wanted,) * 2, rel=2e-2
        )
    assert losses(SideSettings(), 0) == (0.0, 0.0)


def test_the_users_loss(tmp_path: Path) -> None:
    (tmp_path / "loss.py").write_text("def first(out, target):\n    return (out - target)[0, 0]\n")
    runner, _ = both("linen", tmp_path)
    inputs = given(tmp_path / "inputs", 1, x=(5, 4))
    save_file({"target": np.zeros((5, 3), np.float32)}, tmp_path / "000.safetensors")
    training = Training(1, (0,), "sgd", 0.1, f"{tmp_path / 'loss.py'}:first", "out", tmp_path)
    assert len(runner.train(SideSettings(), inputs, training)) == 1
    for wrong, said in (("none", "has no none"), ("first", "has no output logits")):
        loss = f"{tmp_path / 'loss.py'}:{wrong}"
        other = Training(1, (0,), "sgd", 0.1, loss, "logits", tmp_path)
        with pytest.raises(ParityError, match=said):
            runner.train(SideSettings(), inputs, other)


class Counter(nn.Module):
    """The token after the last, and a second best behind by 0.5."""

    @nn.compact
    def __call__(self, input_ids: Any, attention_mask: Any) -> Any:
        del attention_mask
        nth = jnp.arange(10)
        steps = (nth - input_ids[..., None]) % 10
        return {"logits": jnp.where(steps == 1, 2.0, jnp.where(steps == 2, 1.5, 0.0))}


def test_decoding_follows_the_last_token_of_each_row(tmp_path: Path) -> None:
    arrays = {
        "input_ids": np.array([[1, 2, 3], [7, 0, 0]]),
        "attention_mask": np.array([[1, 1, 1], [1, 0, 0]]),
    }
    runner = JaxRunner(Counter(), "linen", "model.py:Counter")
    made = runner.generate(SideSettings(), write_inputs(tmp_path / "in", [arrays]), 3, "logits")
    assert made.tokens == (((4, 5, 6), (8, 9, 0)),)
    assert made.margins == (((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),)
    inputs = write_inputs(tmp_path / "in", [arrays])
    with pytest.raises(ParityError, match="has no output scores"):
        runner.generate(SideSettings(), inputs, 3, "scores")
    with pytest.raises(InputsError, match="needs input_ids"):
        both("nnx", tmp_path)[0].generate(
            SideSettings(), given(tmp_path / "x", 1, x=(5, 4)), 1, "out"
        )
