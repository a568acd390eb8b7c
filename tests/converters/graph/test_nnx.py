"""A port in Flax NNX computes what the original does, with the weights of `migrate weights --to nnx`."""

from __future__ import annotations

import inspect
import re
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from torch import nn

from converters.graph import GraphError, port
from converters.graph.starts.watch import watching
from tests.converters.graph import trained
from tests.converters.graph.flax_side import Inputs
from tests.converters.graph.nnx_side import loaded, variables, with_weights
from tests.converters.graph.test_port import CASES, ids, leaves, real

# Layers, lists, several forms of a class, buffers, what others hold, methods, Sequentials, attention.
USUAL = ("stack", "pyramid", "lender", "biased", "stored", "keeper", "sequences", "attentive")


class Parts(nn.Module):
    """Parameters in a list and in a dict, and modules in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.randn(4)) for _ in range(3)])
        self.named = nn.ParameterDict({"a": nn.Parameter(torch.randn(4))})
        self.layers = nn.ModuleDict({"x": nn.Linear(4, 5), "y": nn.Linear(5, 4)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for scale in self.scales:
            x = x * scale
        return self.layers["y"](self.layers["x"](x + self.named["a"]))


class Torchs(nn.Module):
    """Layers of torch that Flax has otherwise, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose1d(4, 6, 3, stride=2, groups=2)
        self.norm = nn.InstanceNorm1d(6, affine=True)
        self.act, self.slope = nn.PReLU(6), nn.PReLU()
        self.gru = nn.GRU(6, 5, batch_first=True, bidirectional=True)
        self.ln, self.rms = nn.LayerNorm((3, 10)), nn.RMSNorm(10)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(10, 7))
        self.bil = nn.Bilinear(7, 7, 4)
        self.cell = nn.LSTMCell(4, 6)
        self.mha = nn.MultiheadAttention(6, 2, batch_first=True)
        self.bag = nn.EmbeddingBag(9, 6)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.slope(self.act(self.norm(self.up(x)))).transpose(1, 2)
        y, _ = self.gru(x)
        y = self.normed(self.ln(self.rms(y)[:, :3]))
        h, c = self.cell(self.bil(y, y)[:, 0])
        out, weights = self.mha((h + c)[:, None], x, x)
        return out[:, 0] + self.bag(ids), weights


class Noisy(nn.Module):
    """Draws in evaluation, and computes an array in its constructor."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.fc = nn.Linear(width, width)
        self.register_buffer("freqs", 1.0 / 10 ** (torch.arange(0, width) / width), False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x * self.freqs) + torch.randn_like(x)


class Evaluates(nn.Module):
    """Has a layer whose name every nnx module has."""

    def __init__(self) -> None:
        super().__init__()
        self.sow = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.sow(x)


def compared(original: Any, inputs: list[Inputs], folder: Path) -> Any:
    """The port, after its outputs were compared with the original's."""
    written = port(original, inputs[0], api="nnx")
    assert not written.missing
    assert not re.search(r"(?<![\w.])nn\.|linen", written.modeling)
    model = with_weights(loaded(written, folder), original, written, inputs[0])
    run = nnx.jit(lambda model, given: model(**given))
    for given in inputs:
        with torch.no_grad():
            given_back = original(**given)
        if is_dataclass(given_back):
            given_back = vars(given_back)
        wanted = jax.tree.map(lambda one: one.numpy(), given_back)
        arrays = {key: jnp.asarray(value.numpy()) for key, value in given.items()}
        with jax.default_matmul_precision("highest"):
            found = run(model, arrays)
        assert jax.tree.structure(found) == jax.tree.structure(wanted)
        for one, other in zip(leaves(found), leaves(wanted), strict=True):
            assert one.shape == other.shape
            # float32's rounding over a few layers
            assert np.linalg.norm(one - other) / np.linalg.norm(other) < 2e-6
    return model


def of_case(name: str, folder: Path) -> None:
    torch.manual_seed(0)
    factory, inputs = CASES[name]
    compared(factory().eval(), inputs, folder)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if name == "attentive" else ()) for name in USUAL],
)
@pytest.mark.long_cases("stored", "pyramid", "sequences", "stack")
def test_it_computes_what_torch_does(name: str, tmp_path: Path) -> None:
    of_case(name, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(CASES.keys() - set(USUAL)))
def test_all_compute_what_torch_does(name: str, tmp_path: Path) -> None:
    of_case(name, tmp_path)


def test_lists_of_parameters_are_lists(tmp_path: Path) -> None:
    model = compared(Parts().eval(), [{"x": real(2, 4)}, {"x": real(3, 4)}], tmp_path)
    assert {"scales/0", "scales/2", "named/a", "layers/x/kernel"} <= variables(model).keys()


@pytest.mark.long
def test_layers_of_torch_have_nnx_forms(tmp_path: Path) -> None:
    given = {"x": real(2, 4, 5), "ids": torch.tensor([[1, 2, 3], [4, 5, 0]])}
    model = compared(Torchs().eval(), [given], tmp_path)
    assert {"normed/kernel_g", "normed/kernel_v", "up/kernel"} <= variables(model).keys()


@pytest.mark.long
def test_training_is_a_mode_of_the_model(tmp_path: Path) -> None:
    """`model.train()` turns dropout and statistics on; no call takes `deterministic`."""
    torch.manual_seed(0)
    original = trained.Classifier().eval()
    inputs = {"x": real(4, 3, 9, 8)}
    written = port(original, inputs, api="nnx")
    assert written.trains
    assert written.statistics
    assert "deterministic" not in written.modeling
    model = with_weights(loaded(written, tmp_path), original, written, inputs)
    x = jnp.asarray(inputs["x"].numpy())
    kept = variables(model)["features/layers/1/mean"][...]
    first = model(x)
    np.testing.assert_array_equal(model(x), first)
    np.testing.assert_array_equal(variables(model)["features/layers/1/mean"][...], kept)
    model.train()
    assert np.abs(np.asarray(model(x) - model(x))).max() > 0, "other masks"
    assert np.abs(np.asarray(variables(model)["features/layers/1/mean"][...] - kept)).max() > 0
    original.train()
    original(inputs["x"])
    original(inputs["x"])
    theirs = original.features[1].running_var.numpy()
    np.testing.assert_allclose(variables(model)["features/layers/1/var"][...], theirs, rtol=1e-5)


def test_it_is_trained_as_nnx_models_are(tmp_path: Path) -> None:
    factory, inputs = CASES["stack"]
    written = port(factory().eval(), inputs[0], api="nnx")
    model = loaded(written, tmp_path)
    model.train()
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    given = jnp.asarray(inputs[0]["ids"].numpy())

    def logits(model: Any) -> Any:
        return model(given)["logits"]

    @nnx.jit
    def step(model: Any, optimizer: Any) -> Any:
        def loss(model: Any) -> Any:
            return optax.softmax_cross_entropy_with_integer_labels(logits(model), given).mean()

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    losses = [float(step(model, optimizer)) for _ in range(20)]
    assert losses[-1] < 0.7 * losses[0]
    graph, state = nnx.split(model)
    again = nnx.merge(graph, state)
    np.testing.assert_array_equal(logits(again), logits(model))


def test_it_draws_from_a_stream_and_computes_no_state(tmp_path: Path) -> None:
    """What follows from sizes is a property: no state, and no checkpoint, has it."""
    written = port(Noisy(), {"x": real(2, 6)}, api="nnx")
    assert "self.rngs.noise()" in written.modeling
    assert "@property\n    def freqs(self) -> Array:" in written.modeling
    model = loaded(written, tmp_path)
    assert variables(model).keys() == {"fc/kernel", "fc/bias"}
    x = jnp.ones((2, 6))
    assert np.abs(np.asarray(model(x) - model(x))).max() > 0
    same = [loaded(written, tmp_path, seed=3)(x) for _ in range(2)]
    np.testing.assert_array_equal(*same)


def test_it_starts_as_the_original(tmp_path: Path) -> None:
    """The constructor draws by the initializers of the original; a seed gives one model."""
    with watching() as watch:
        original = CASES["stack"][0]()
    written = port(original, CASES["stack"][1][0], watch.starts(original), api="nnx")
    assert written.otherwise == {}
    assert "kernel_init=torch_uniform" in written.modeling
    first, second = (variables(loaded(written, tmp_path, seed=seed)) for seed in (0, 1))
    path = "blocks/0/mlp/fc1/kernel"
    assert np.abs(np.asarray(first[path][...] - second[path][...])).max() > 0
    assert np.abs(np.asarray(first[path][...])).max() <= 6**-0.5
    np.testing.assert_array_equal(first["blocks/0/norm/scale"][...], 1)


@pytest.mark.long
def test_other_sizes_follow_the_configuration(tmp_path: Path) -> None:
    """Sizes of inputs, too, are expressions of the configuration."""
    factory, inputs = CASES["stack"]
    written = port(factory(), inputs[0], api="nnx")
    model = loaded(written, tmp_path, width=8, depth=2)
    held = variables(model)
    assert held["blocks/1/mlp/fc2/kernel"].shape == (32, 8)
    assert held["blocks/0/norm/scale"].shape == (8,)
    outputs = model(jnp.asarray(ids(11, 2, 4).numpy()))
    assert outputs["logits"].shape == (2, 4, 11)


def test_it_computes_in_bfloat16(tmp_path: Path) -> None:
    factory, inputs = CASES["stack"]
    written = port(factory(), inputs[0], api="nnx")
    model = loaded(written, tmp_path)
    cls = type(model)
    narrow = cls(model.config, rngs=nnx.Rngs(0), dtype=jnp.bfloat16)
    given = jnp.asarray(inputs[0]["ids"].numpy())
    assert {one.dtype.name for one in jax.tree.leaves(narrow(given))} == {"bfloat16"}
    assert {one.dtype.name for one in variables(narrow).values()} == {"float32"}
    assert "rngs" in inspect.signature(cls.__init__).parameters


def test_a_name_that_every_nnx_module_has_is_refused() -> None:
    with pytest.raises(GraphError, match=r"Evaluates\.sow: every nnx module has a sow already"):
        port(Evaluates(), {"x": real(2, 4)}, api="nnx")


@pytest.mark.long
def test_linen_is_as_it_was() -> None:
    factory, inputs = CASES["stack"]
    assert port(factory(), inputs[0]).modeling == port(factory(), inputs[0], api="linen").modeling
    assert "nnx" not in port(factory(), inputs[0]).modeling
