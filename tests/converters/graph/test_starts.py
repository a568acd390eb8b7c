"""`init` of a port draws what the original's factory was seen to draw."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from converters.graph import Port, port
from converters.graph.starts.law import Computed, Constant, Draw, Other, Patched
from converters.graph.starts.watch import Starts, watching
from tests.converters.graph.nnx_side import loaded, variables

DRAWS = 200


class Scaled(nn.Module):
    """A layer with draws, formulas and buffers of its own."""

    def __init__(self, dim: int, std: float) -> None:
        super().__init__()
        self.scaled = nn.Parameter(torch.randn(dim, dim) * dim**-0.5)
        self.shifted = nn.Parameter(torch.rand(dim) * 4 - 1)
        self.decay = nn.Parameter(torch.log(torch.rand(dim) * 0.9 + 0.1))
        self.gain = nn.Parameter(torch.full((dim,), 1e-6))
        self.slopes = nn.Parameter(torch.arange(1.0, dim + 1).sqrt())
        self.table = nn.Parameter(torch.empty(dim, dim))
        nn.init.trunc_normal_(self.table, std=std, a=-std, b=2 * std)
        self.register_buffer("level", torch.full((dim,), 0.5))
        self.register_buffer("order", torch.tensor([2, 0, 1]))
        self.register_buffer("steps", torch.arange(dim).float() ** 2 / 7, persistent=False)
        self.register_buffer("noise", torch.randn(dim))
        self.register_buffer("turned", torch.arange(dim).flip(0) * 1.5, persistent=False)
        self.rates = nn.Parameter(torch.log(torch.arange(1, dim + 1)[None].expand(3, -1).clone()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x @ self.scaled + self.shifted * self.decay + self.slopes * self.gain
        x = (
            x[:, self.order[self.order]] * self.level.mean()
            + (x @ self.table).sum()
            + self.steps.sum()
        )
        return x + self.noise.mean() + (self.turned * self.rates).sum()


class Causal(nn.Conv1d):
    """A layer of torch with a forward of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(nn.functional.pad(x, (2, 0)))


class Table(nn.Embedding):
    """Another one."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids) * 2


class Net(nn.Module):
    """Layers of torch with their defaults, and with what the model draws into them."""

    def __init__(self, dim: int = 12, depth: int = 2, std: float = 0.03) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, dim, padding_idx=2)
        self.plain = nn.Linear(dim, dim)
        self.own = Scaled(dim, std)
        self.up = nn.ConvTranspose1d(3, 4, 3)
        self.conv = nn.Conv1d(4, 4, 3, groups=2)
        self.causal, self.table = Causal(4, 4, 3), Table(9, 4)
        nn.init.xavier_uniform_(self.table.weight)
        self.rnn = nn.LSTM(4, 4, batch_first=True)
        self.head = nn.Linear(4, 5)
        spread = {"head": std / math.sqrt(2 * depth), **dict.fromkeys(("conv",), 0.5)}
        nn.init.normal_(self.head.weight, std=spread["head"])
        nn.init.xavier_uniform_(self.plain.weight, gain=0.5)
        nn.init.normal_(self.conv.bias, std=spread["conv"])
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")
        nn.init.constant_(self.head.bias, -2.0)
        nn.init.orthogonal_(self.rnn.weight_hh_l0)
        for bias in (self.rnn.bias_ih_l0, self.rnn.bias_hh_l0):
            nn.init.zeros_(bias)
            bias.data[4:8].fill_(1.0)  # the forget gate

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.own(self.plain(self.embed(ids)).mean(1))
        x = self.causal(self.conv(self.up(x[:, :, None]))).transpose(1, 2)
        return self.head(self.rnn(x)[0] + self.table(ids[:, :1]))


def watched(make: Callable[[], nn.Module], seed: int = 0) -> tuple[nn.Module, Starts]:
    torch.manual_seed(seed)
    with watching() as watch:
        model = make()
    return model.eval(), watch.starts(model)


def distance(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> float:
    """Kolmogorov and Smirnov's, over what it would be by chance once in a thousand times."""
    x, y = np.sort(left.ravel()), np.sort(right.ravel())
    both = np.concatenate([x, y])
    shares = [np.searchsorted(one, both, side="right") / one.size for one in (x, y)]
    by_chance = 1.95 * math.sqrt((x.size + y.size) / (x.size * y.size))
    return float(np.abs(shares[0] - shares[1]).max()) / by_chance


@pytest.fixture(scope="module")
def written() -> tuple[nn.Module, Port]:
    model, starts = watched(Net)
    return model, port(model, {"ids": torch.randint(0, 9, (2, 5))}, starts)


@pytest.mark.long
def test_all_arrays_have_the_distributions_of_the_original(
    written: tuple[nn.Module, Port], load: Callable[..., Any]
) -> None:
    model, made = written
    assert made.otherwise == {}
    flax = load(made)
    ids = jnp.zeros((2, 5), jnp.int32)
    draws = jax.jit(jax.vmap(lambda key: flax.init(key, ids=ids)))(
        jax.random.split(jax.random.key(0), DRAWS)
    )
    torch.manual_seed(2)
    news = [Net().state_dict() for _ in range(DRAWS)]
    params = draws["params"]
    named = {
        "embed.weight": params["embed"]["embedding"],
        "plain.weight": params["plain"]["kernel"],
        "plain.bias": params["plain"]["bias"],
        "up.weight": params["up"]["kernel"],
        "up.bias": params["up"]["bias"],
        "conv.weight": params["conv"]["kernel"],
        "conv.bias": params["conv"]["bias"],
        "causal.weight": params["causal"]["kernel"],
        "causal.bias": params["causal"]["bias"],
        "table.weight": next(iter(params["table"].values())),
        "rnn.weight_ih_l0": params["rnn"]["input_kernel_l0"],
        "rnn.weight_hh_l0": params["rnn"]["hidden_kernel_l0"],
        "rnn.bias_ih_l0": params["rnn"]["input_bias_l0"],
        "head.weight": params["head"]["kernel"],
        "head.bias": params["head"]["bias"],
        **{f"own.{name}": value for name, value in params["own"].items()},
        **{f"own.{name}": value for name, value in draws["buffers"]["own"].items()},
    }
    assert {*news[0]} - {*named} == {"rnn.bias_hh_l0"}
    for key, ours in named.items():
        if key in ("own.steps", "own.turned"):
            continue
        theirs, ours = np.stack([new[key].numpy() for new in news]), np.asarray(ours)
        if (theirs == theirs[0]).all():
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, err_msg=key)
            continue
        assert distance(theirs, ours) < 1, key
        np.testing.assert_allclose(ours.mean(), theirs.mean(), atol=0.2 * theirs.std() + 1e-7)
        np.testing.assert_allclose(ours.std(), theirs.std(), rtol=0.08, atol=1e-7, err_msg=key)
    np.testing.assert_array_equal(params["embed"]["embedding"][:, 2], 0)
    np.testing.assert_array_equal(params["rnn"]["hidden_bias_l0"][:, 4:8], 1)
    for name in ("steps", "turned"):
        expected = model.get_buffer(f"own.{name}")
        np.testing.assert_allclose(draws["buffers"]["own"][name][0], expected, rtol=1e-6)


def test_settings_stand_in_the_initializers(
    written: tuple[nn.Module, Port], load: Callable[..., Any]
) -> None:
    text = written[1].modeling.replace("\n", "").replace(" ", "")
    assert "nn.initializers.normal(self.config.std/math.sqrt(2*self.config.depth))" in text
    assert "uniform_within(self.config.dim**-0.5)" in text
    flax = load(written[1], std=3.0)
    made = jax.jit(flax.init)(jax.random.key(0), ids=jnp.zeros((2, 5), jnp.int32))
    assert np.std(made["params"]["head"]["kernel"]) > 0.5


def test_what_is_stored_is_refused_at_another_size(
    written: tuple[nn.Module, Port], load: Callable[..., Any]
) -> None:
    assert set(written[1].initial) == {"own/turned"}
    flax = load(written[1], dim=14)
    with pytest.raises(ValueError, match=r"\(12,\) in initial.safetensors; \(14,\) is needed"):
        jax.eval_shape(flax.init, jax.random.key(0), ids=jnp.zeros((2, 5), jnp.int32))


class Odd(nn.Module):
    """Draws that no port has, and a layer that starts as a copy of another one."""

    def __init__(self) -> None:
        super().__init__()
        self.lower = nn.Parameter(torch.randn(4, 4).tril())
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.load_state_dict(self.first.state_dict())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x @ self.lower))


def test_what_is_not_reproduced_is_named() -> None:
    model, starts = watched(Odd)
    made = port(model, {"x": torch.randn(2, 4)}, starts)
    assert made.otherwise == {"lower": "drawn by tril"}
    assert [note.partition(": ")[2] for note in made.notes] == [
        "second.weight as a copy of first.weight, second.bias as a copy of first.bias"
    ]


def test_laws_are_those_of_what_wrote_last() -> None:
    def make() -> nn.Module:
        layer = nn.Linear(3, 4)
        layer.weight.data.normal_(1.0, 2.0).mul_(3.0)
        layer.bias.data.zero_()
        layer.mask = nn.Buffer(torch.ones(4, 4).tril())
        layer.table = nn.Parameter(torch.zeros(4, 2))
        layer.table.data[1].uniform_()
        layer.none = nn.Parameter(torch.empty(2, 0))
        layer.odd = nn.Parameter(torch.bernoulli(torch.full((2,), 0.5)))
        return layer

    _, starts = watched(make)
    weight = starts["weight"].law
    assert isinstance(weight, Draw)
    assert (weight.second.value, weight.scale.value) == (2.0, 3.0)
    assert isinstance(starts["bias"].law, Constant)
    assert isinstance(starts["mask"].law, Computed)
    assert isinstance(starts["table"].law, Patched)
    assert isinstance(starts["none"].law, Constant)
    assert starts["odd"].law == Other("bernoulli")


def test_without_a_watch_nothing_is_claimed() -> None:
    torch.manual_seed(0)
    made = port(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), {"input": torch.randn(2, 3)})
    assert not made.watched
    assert "_init=" not in made.modeling


class Weighted(nn.Module):
    """Layers that compute their weights: weight_norm in both forms, spectral_norm, scales of its own."""

    def __init__(self) -> None:
        super().__init__()
        conv = nn.Conv1d(4, 6, 3, groups=2)
        nn.init.normal_(conv.weight, std=0.3)
        nn.init.zeros_(conv.bias)
        self.conv = nn.utils.parametrizations.weight_norm(conv, dim=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            self.head = nn.utils.weight_norm(nn.Linear(6, 5, bias=False))
            self.other = nn.utils.weight_norm(nn.Linear(5, 5))
        self.head.weight_g.data.fill_(2.0)
        nn.init.normal_(self.other.weight_v)
        self.norm = nn.BatchNorm1d(5)
        nn.init.constant_(self.norm.weight, 0.25)
        self.sigma = nn.utils.parametrizations.spectral_norm(nn.Linear(5, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.head(self.conv(x).transpose(1, 2))
        x = self.norm(self.other(x).transpose(1, 2)).transpose(1, 2)
        return self.sigma(x)


@pytest.mark.long
def test_what_a_weight_is_computed_from_starts_as_the_weight(load: Callable[..., Any]) -> None:
    model, starts = watched(Weighted)
    made = port(model, {"x": torch.randn(2, 4, 9)}, starts)
    assert set(made.otherwise.items()) == {("other.weight_g", "the norm of another tensor")}
    flax = load(made)
    draws = jax.jit(jax.vmap(lambda key: flax.init(key, x=jnp.zeros((2, 4, 9)))))(
        jax.random.split(jax.random.key(0), DRAWS)
    )["params"]
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        news = [Weighted().state_dict() for _ in range(DRAWS)]
    for key, ours in {
        "conv.parametrizations.weight.original1": draws["conv"]["kernel_v"],
        "conv.parametrizations.weight.original0": draws["conv"]["kernel_g"],
        "head.weight_v": draws["head"]["kernel_v"],
        "other.weight_v": draws["other"]["kernel_v"],
        "other.bias": draws["other"]["bias"],
        "sigma.parametrizations.weight.original": draws["sigma"]["kernel_orig"],
    }.items():
        theirs = np.stack([new[key].numpy() for new in news])
        assert distance(theirs, np.asarray(ours)) < 1, key
    np.testing.assert_array_equal(draws["conv"]["bias"], 0)
    np.testing.assert_array_equal(draws["head"]["kernel_g"], 2)
    np.testing.assert_array_equal(draws["norm"]["scale"], 0.25)


class Cut(nn.Module):
    """Truncated normal draws: with bounds that none reaches, and with one that a setting moves."""

    def __init__(self, std: float = 0.3) -> None:
        super().__init__()
        self.far = nn.Parameter(torch.empty(4, 3))
        self.near = nn.Parameter(torch.empty(3))
        nn.init.trunc_normal_(self.far, std=0.02)
        nn.init.trunc_normal_(self.near, std=std)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.far + self.near


def test_bounds_that_no_draw_reaches_are_left_out() -> None:
    model, starts = watched(Cut)
    text = port(model, {"x": torch.randn(2, 4)}, starts).modeling
    assert "nn.initializers.normal(0.02)" in text
    assert "trunc_normal(self.config.std)" in text, "another size may reach its bounds"


class Sloped(nn.Module):
    """PReLU with torch's own slope, with its own, for each channel, and with drawn slopes; weight_norm."""

    def __init__(self, slope: float = 0.1, classes: int = 4) -> None:
        super().__init__()
        self.plain = nn.PReLU()
        self.own = nn.PReLU(init=slope)
        self.each = nn.PReLU(3, init=slope)
        self.drawn = nn.PReLU(3)
        nn.init.uniform_(self.drawn.weight)
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(5, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drawn(self.each(self.own(self.plain(x)))))


@pytest.mark.parametrize("api", ["linen", "nnx"])
def test_slopes_start_as_the_original_and_a_norm_is_no_copy(api: Any) -> None:
    model, starts = watched(Sloped)
    made = port(model, {"x": torch.randn(2, 3, 5)}, starts, api=api)
    assert made.otherwise == {
        "drawn.weight": "its Flax layer starts with one number for all slopes"
    }
    assert made.modeling.count("negative_slope_init=0.25") == 1
    assert made.modeling.count("config.slope") == 2
    assert made.baked == ()
    assert made.modeling.count("config.classes") == 1  # the size of a layer inside of weight_norm
    assert not any("copies" in note for note in made.notes)


class Grouped(nn.Module):
    """Transposed convolutions with groups: as torch makes them, filled, drawn, and by inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.filled = (
            nn.ConvTranspose1d(4, 4, 3, groups=2),
            nn.ConvTranspose1d(4, 4, 3, groups=2),
        )
        self.drawn, self.by_fans = (
            nn.ConvTranspose1d(4, 4, 3, groups=2),
            nn.ConvTranspose1d(4, 4, 3, groups=2),
        )
        nn.init.constant_(self.filled.weight, 0.3)
        nn.init.normal_(self.drawn.weight, std=0.2)
        nn.init.xavier_normal_(self.by_fans.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.by_fans(self.drawn(self.filled(self.plain(x))))


def test_a_grouped_transposed_convolution_starts_as_the_original() -> None:
    model, starts = watched(Grouped)
    made = port(model, {"x": torch.randn(2, 4, 9)}, starts)
    assert made.otherwise == {"by_fans.weight": "the layer has no initializer for it"}
    text = made.modeling.replace(" ", "").replace("\n", "")
    assert text.count("kernel_init=nn.initializers.constant(0.3)") == 1
    assert text.count("kernel_init=nn.initializers.normal(0.2)") == 1


class Normed(nn.Module):
    """Norms and an embedding that Flax has otherwise or not at all, filled with numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(9, 6, mode="sum")
        self.batch = nn.BatchNorm1d(6, track_running_stats=False)
        self.each = nn.InstanceNorm1d(4, affine=True, track_running_stats=True)
        self.layer, self.rms = nn.LayerNorm((4, 6)), nn.RMSNorm((4, 6))
        for at, parameter in enumerate(self.parameters(), 2):
            nn.init.constant_(parameter, at / 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.batch(self.table(ids))
        return self.rms(self.layer(self.each(rows[:, None] * torch.ones(4, 1))))


@pytest.mark.parametrize("api", ["linen", "nnx"])
def test_layers_of_our_own_start_as_the_original(
    api: Any, load: Callable[..., Any], tmp_path: Path
) -> None:
    model, starts = watched(Normed)
    ids = torch.randint(0, 9, (2, 3))
    made = port(model, {"ids": ids}, starts, api=api)
    assert made.otherwise == {}
    if api == "nnx":
        arrays = [array[...] for array in variables(loaded(made, tmp_path)).values()]
    else:
        arrays = jax.tree.leaves(load(made).init(jax.random.key(0), ids=jnp.asarray(ids))["params"])
    theirs = sorted(parameter.flatten()[0].item() for parameter in model.parameters())
    assert sorted(
        {float(value) for array in arrays for value in np.unique(array)} - {0.0, 1.0}
    ) == [value for value in theirs if value != 1.0]
