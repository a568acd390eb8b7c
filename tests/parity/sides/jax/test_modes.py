"""Statistics are mutable only in training: a model that asks for that is not put into training by us."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from torch import nn

from migrate.parity.compare import compare_sides
from migrate.parity.ground.options import ParityOptions
from migrate.parity.ground.results import LayerVerdict, Parity
from migrate.parity.ground.settings import SideSettings
from migrate.parity.sides.jax.arguments import BoundInputs
from migrate.parity.sides.jax.nnx import NnxModel
from migrate.parity.sides.jax.runner import JaxRunner
from migrate.parity.sides.side import InProcess
from migrate.parity.sides.torch.runner import TorchRunner
from migrate.progress import no_progress
from tests.parity.sides.jax.jax_sides import dump, given, values


class Asks(linen.Module):
    """The idiom of jax-resnet: trained is who may write statistics."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        train = self.is_mutable_collection("batch_stats")
        x = linen.Dense(8, name="fc")(x)
        return linen.BatchNorm(use_running_average=not train, epsilon=1e-5, name="norm")(x)


class Left(linen.Module):
    """The norm was left in training mode."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = linen.Dense(8, name="fc")(x)
        return linen.BatchNorm(use_running_average=False, epsilon=1e-5, name="norm")(x)


class Torch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)
        self.norm.running_mean.uniform_(-1, 1)  # type: ignore[operator, union-attr]

    def forward(self, x: Any) -> Any:
        return self.norm(self.fc(x))


def compared(folder: Path, model: Any) -> Parity:
    a = InProcess(TorchRunner(Torch(), "torch", "net.py:Torch"), folder)
    b = InProcess(JaxRunner(model, "linen", "net.py:Flax"), folder)
    given = ParityOptions(inputs=("x=float32[4,6]",), count=2)
    return compare_sides(a, b, given, folder, no_progress)


def test_a_model_that_asks_whether_it_may_write_is_in_evaluation(tmp_path: Path) -> None:
    found = compared(tmp_path, Asks())
    assert found.matches, found.sentence
    assert found.causes == ()
    assert found.a.mode == found.b.mode == "evaluation mode"


def test_a_layer_left_in_training_mode_shows(tmp_path: Path) -> None:
    found = compared(tmp_path, Left())
    assert found.first is not None
    assert (found.first.name, found.first.verdict) == ("norm", LayerVerdict.B_PARTS)
    assert found.causes[0].name == "batch-statistics"
    assert found.b.mode.startswith("training mode")
    assert any("left in training mode" in note for note in found.notes)


@pytest.mark.parametrize("train", [False, True])
def test_a_model_that_asks_is_trained_where_it_is(train: bool, tmp_path: Path) -> None:
    inputs = given(tmp_path / "inputs", 1, x=(4, 6))
    runner = JaxRunner(Asks(), "linen", "net.py:Asks")
    runner.prepare(SideSettings(), inputs)
    out = values(dump(runner, inputs, tmp_path / "dump"))[""]
    model = runner._model
    from migrate.parity.sides.jax.arguments import CallParameters

    bound = CallParameters(model.parameters(), "").bind(inputs[0])
    made, changed = model.apply(model.weights or {}, bound, train=train)
    assert np.allclose(made, out) is not train
    assert set(changed) == ({"batch_stats/norm/mean", "batch_stats/norm/var"} if train else set())


class OwnDropout(nnx.Dropout):
    """A dropout of the user's, who derives it from Flax's."""


class Drops(nnx.Module):
    def __init__(self) -> None:
        self.dropout = OwnDropout(0.5, rngs=nnx.Rngs(0))

    def __call__(self, x: Any) -> Any:
        return self.dropout(x)


def test_a_dropout_derived_from_that_of_flax_drops_nothing_without_a_key() -> None:
    model = NnxModel(Drops(), "drops")
    bound = BoundInputs((jnp.ones((4, 8)),), {}, {}, {})
    assert bool((model.trained({}, bound)[0] == 1).all())
    assert not bool((model.trained({}, bound, jax.random.key(0))[0] == 1).all())
