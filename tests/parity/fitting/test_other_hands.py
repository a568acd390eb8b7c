"""Targets as other hands write them: where a layer ends, what it is given, and which tensor it shares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen
from torch import nn
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

from converters.errors import MisfitError
from migrate.parity.ground.errors import ParityError
from tests.parity.fitting.follow import follow

Array = np.ndarray[Any, Any]
WORDS, WIDTH, PLACES = 11, 6, 9
IDS = [{"ids": np.random.default_rng(n).integers(0, WORDS, (2, 5))} for n in (0, 1)]


class Scaled(nn.Embedding):
    """Its factor is inside of the layer."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids) * 3.0


class Places(nn.Embedding):
    """Is given tokens, and makes positions of them."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.arange(ids.shape[1]) + 2)


class Coder(nn.Module):
    """Two readers of one table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.first, self.second = Scaled(WORDS, WIDTH), nn.Embedding(WORDS, WIDTH)
        self.first.weight = self.second.weight = self.table.weight
        self.places = Places(PLACES, WIDTH)
        self.kinds = nn.Embedding(2, WIDTH)
        self.body, self.gate = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.ones(WIDTH))
        self.head = nn.Linear(WIDTH, WORDS)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.first(ids) + self.places(ids) + self.kinds(torch.zeros(1, ids.shape[1]).long())
        x = x + self.gate * self.body(x).tanh() + self.second(ids.flip(1))
        return self.head(x)


class FlaxCoder(linen.Module):
    """The same; `wrong`: another activation, `single`: computes it in float32."""

    wrong: bool = False
    single: bool = False

    @linen.compact
    def __call__(self, ids: Any) -> Any:
        table = linen.Embed(WORDS, WIDTH)
        x = table(ids) * 3.0
        x += linen.Embed(PLACES, WIDTH)(jnp.broadcast_to(jnp.arange(5) + 2, ids.shape))
        x += linen.Embed(2, WIDTH)(jnp.zeros_like(ids))
        inner = linen.Dense(WIDTH)(x)
        inner = inner.astype(jnp.float32) if self.single else inner
        inner = jnp.sin(inner) if self.wrong else jnp.tanh(inner)
        x = x + self.param("gate", linen.initializers.ones, (WIDTH,)) * inner
        x += table(jnp.flip(ids, 1))
        bias = self.param("bias", linen.initializers.zeros, (WORDS,))
        # As it is read in the Flax models of transformers: past the layer.
        return x @ self.variables["params"]["Embed_0"]["embedding"].T + bias


@pytest.mark.parametrize("single", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_table_that_is_shared_scaled_and_read_past_its_layer(
    single: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    found = follow(Coder(), FlaxCoder(single=single), IDS, tmp_path)
    assert found.proven, found.sentence
    said = [note for note in found.notes if "computes in float32 in places" in note]
    assert bool(said) == single, found.notes


def test_that_hides_no_difference(tmp_path: Path) -> None:
    torch.manual_seed(0)
    found = follow(Coder(), FlaxCoder(wrong=True, single=True), IDS, tmp_path)
    assert not found.proven


class Headed(nn.Module):
    """Its head is given the mean of the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.other, self.head = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.other(self.body(x).tanh()).sin()
        return self.head(x.mean(1))


class FlaxHeaded(linen.Module):
    """Its head is given the rows too, as big_vision's ViT has it: `logits_2d`. `wrong`: another mean."""

    wrong: bool = False

    @linen.compact
    def __call__(self, x: Any) -> Any:
        head = linen.Dense(WIDTH)
        x = jnp.tanh(linen.Dense(WIDTH)(x))
        rows = head(
            x**2
        )  # before the layers that torch calls before its head: none is left but these
        x = jnp.sin(linen.Dense(WIDTH)(x))
        return head(jnp.median(x, 1) if self.wrong else x.mean(1)), rows


class Counted(Headed):
    """Its head has a width of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, 4)


def counted_apply(params: Any, x: Any) -> Any:
    """The same as a function, the head on the rows too."""

    def dense(name: str, x: Any) -> Any:
        return x @ params[name]["w"] + params[name]["b"]

    x = jnp.tanh(dense("a", x))
    rows = dense("c", x**2)
    return dense("c", jnp.sin(dense("b", x)).mean(1)), rows


def of_counted(key: Any) -> Any:
    """Its parameters."""
    del key
    sides = {"a": WIDTH, "b": WIDTH, "c": 4}
    return {one: {"w": jnp.ones((WIDTH, side)), "b": jnp.ones(side)} for one, side in sides.items()}


ROWS = [{"x": np.random.default_rng(n).normal(size=(2, 5, WIDTH))} for n in (0, 1)]


def test_a_layer_that_is_called_on_something_more_is_no_difference(tmp_path: Path) -> None:
    torch.manual_seed(0)
    found = follow(Headed(), FlaxHeaded(), ROWS, tmp_path)
    assert found.proven, found.sentence
    places = {row.key: row.path for row in found.plan.mapped}
    assert places["head.weight"] == "params/Dense_0/kernel"
    assert any("Flax's output" in note for note in found.notes)


def test_that_hides_no_difference_behind_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    found = follow(Headed(), FlaxHeaded(wrong=True), ROWS, tmp_path)
    assert not found.proven
    assert "Dense_0" in found.sentence, found.sentence


def test_a_function_that_computes_something_more_is_none(tmp_path: Path) -> None:
    torch.manual_seed(0)
    found = follow(Counted(), counted_apply, ROWS, tmp_path, kind="jax", start=of_counted)
    assert found.proven, found.sentence


class Tenth(Counted):
    """Has a number in it that float32 rounds."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.other((0.1 * self.body(x)).tanh()).sin()
        return self.head(x.mean(1))


def tenth_apply(params: Any, x: Any) -> Any:
    """Keeps that number in float32."""
    x = x @ params["a"]["w"] + params["a"]["b"]
    x = jnp.tanh(x.astype(jnp.float32) * np.float32(0.1))
    x = jnp.sin(x @ params["b"]["w"] + params["b"]["b"])
    return x.mean(1) @ params["c"]["w"] + params["c"]["b"]


def test_a_function_with_a_number_in_float32_is_not_called_different(tmp_path: Path) -> None:
    torch.manual_seed(0)
    found = follow(Tenth(), tenth_apply, ROWS, tmp_path, kind="jax", start=of_counted)
    assert found.proven, found.sentence
    assert any("computes in float32 in places" in note for note in found.notes), found.notes


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(4 * 5 * 5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.conv(x)).flatten(1))


def of_haiku(key: Any) -> Any:
    """Parameters by module and name, as haiku has them."""
    del key
    return {
        "net/~/conv2_d": {"w": jnp.ones((3, 3, 3, 4)), "b": jnp.zeros(4)},
        "net/~/linear": {"w": jnp.ones((100, 2)), "b": jnp.zeros(2)},
    }


def haiku_apply(params: Any, x: Any) -> Any:
    """Channels last."""
    conv, linear = params["net/~/conv2_d"], params["net/~/linear"]
    numbers = ("NHWC", "HWIO", "NHWC")
    x = jax.lax.conv_general_dilated(x, conv["w"], (1, 1), "SAME", dimension_numbers=numbers)
    x = jax.nn.relu(x + conv["b"]).transpose(0, 3, 1, 2).reshape(len(x), -1)
    return x @ linear["w"] + linear["b"]


def of_equinox(key: Any) -> Any:
    """A list of layers, each of one image; some leaves are functions."""
    del key
    return [
        {"weight": jnp.ones((4, 3, 3, 3)), "bias": jnp.zeros((4, 1, 1)), "act": jax.nn.relu},
        {"weight": jnp.ones((2, 100)), "bias": jnp.zeros(2)},
    ]


def equinox_apply(params: Any, x: Any) -> Any:
    """Channels first, one image at a time under vmap."""
    conv, linear = params

    def one(x: Any) -> Any:
        x = jax.lax.conv_general_dilated(x[None], conv["weight"], (1, 1), "SAME")[0] + conv["bias"]
        return linear["weight"] @ conv["act"](x).reshape(-1) + linear["bias"]

    return jax.vmap(one)(x)


IMAGES = [{"x": np.random.default_rng(n).normal(size=(2, 3, 5, 5))} for n in (0, 1)]


def test_a_function_as_haiku_has_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    found = follow(
        Images(), haiku_apply, IMAGES, tmp_path, kind="jax", start=of_haiku, channels_last=("x",)
    )
    assert found.proven, found.sentence


def test_a_function_as_equinox_has_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Images()
    plain = nn.Sequential(model.conv, nn.ReLU(), nn.Flatten(), model.head)
    given = [{"input": one["x"]} for one in IMAGES]
    found = follow(plain, equinox_apply, given, tmp_path, kind="jax", start=of_equinox)
    assert found.proven, found.sentence


class Tied(nn.Module):
    """Its table is its head's kernel, too; the head's name comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.body = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.table(ids)).tanh())


class Untied(linen.Module):
    """Keeps it twice."""

    @linen.compact
    def __call__(self, ids: Any) -> Any:
        x = jnp.tanh(linen.Dense(WIDTH)(linen.Embed(WORDS, WIDTH)(ids)))
        return linen.Dense(WORDS, use_bias=False)(x)


def test_a_table_that_is_kept_twice(tmp_path: Path) -> None:
    torch.manual_seed(0)
    found = follow(Tied(), Untied(), IDS, tmp_path)
    assert found.proven, found.sentence


class Expert(nn.Module):
    """A layer of experts as transformers has them: tensors of three axes, by which tokens are sorted."""

    def __init__(self) -> None:
        super().__init__()
        config = MixtralConfig(
            hidden_size=8, intermediate_size=12, num_local_experts=4, num_experts_per_tok=2
        )
        config._experts_implementation = "eager"
        self.first, self.last = nn.Linear(WIDTH, 8), nn.Linear(8, 3)
        self.moe = MixtralSparseMoeBlock(config)
        for one in self.moe.parameters():
            nn.init.normal_(one, std=0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.moe(self.first(x).tanh()))


def of_expert(key: Any) -> Any:
    """Parameters as MaxText has them: a kernel for all experts."""
    del key
    shapes = {"a": (WIDTH, 8), "ab": (8,), "gate": (8, 4), "h": (8, 3), "hb": (3,)}
    shapes |= {"wi_0": (4, 8, 12), "wi_1": (4, 8, 12), "wo": (4, 12, 8)}
    return {name: jnp.ones(shape) for name, shape in shapes.items()}


def expert_apply(p: Any, x: Any) -> Any:
    """Every expert computes every token."""
    x = jnp.tanh(x @ p["a"] + p["ab"])
    top, at = jax.lax.top_k(jax.nn.softmax(x @ p["gate"]), 2)
    share = (jax.nn.one_hot(at, 4) * (top / top.sum(-1, keepdims=True))[..., None]).sum(-2)
    into, gate = (jnp.einsum("bsd,edf->bsef", x, p[name]) for name in ("wi_1", "wi_0"))
    y = jnp.einsum("bsef,efd->bsed", jax.nn.silu(gate) * into, p["wo"])
    return jnp.einsum("bsed,bse->bsd", y, share) @ p["h"] + p["hb"]


def test_experts_are_named_on_both_sides(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with pytest.raises(MisfitError) as raised:
        follow(Expert(), expert_apply, ROWS, tmp_path, kind="jax", start=of_expert)
    said = raised.value.misfits
    assert any(one.startswith("missing") and "wo (4, 12, 8)" in one for one in said), said
    assert any(one.startswith("extra") and "gate_up_proj" in one for one in said), said


class WeightNormed(Headed):
    def __init__(self) -> None:
        super().__init__()
        nn.utils.parametrizations.weight_norm(self.body)


class Plain(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = jnp.sin(linen.Dense(WIDTH)(jnp.tanh(linen.Dense(WIDTH)(x))))
        return linen.Dense(WIDTH)(x.mean(1))


def test_a_weight_that_torch_makes_of_several_is_named_with_what_to_do(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with pytest.raises(MisfitError, match="remove_parametrizations") as raised:
        follow(WeightNormed(), Plain(), ROWS, tmp_path)
    assert raised.value.misfits[0].startswith("body.weight is made of several tensors")
    taken_off = WeightNormed()
    nn.utils.parametrize.remove_parametrizations(taken_off.body, "weight")
    found = follow(taken_off, Plain(), ROWS, tmp_path / "again")
    assert found.proven, found.sentence


class Insisting(Headed):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.dtype == torch.float32
        return super().forward(x)


def test_a_model_that_runs_in_float32_alone_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(ParityError, match="in float64, which the comparison needs"):
        follow(Insisting(), FlaxHeaded(), ROWS, tmp_path)


class Broken(Headed):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no such table")


def test_a_model_that_runs_in_no_dtype_is_not(tmp_path: Path) -> None:
    with pytest.raises(ParityError, match="no such table") as raised:
        follow(Broken(), FlaxHeaded(), ROWS, tmp_path)
    assert "in float64" not in str(raised.value)


class Positioned(nn.Module):
    """Keeps a table that it never trains."""

    def __init__(self, constant: bool = False) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3)
        places = torch.arange(5 * WIDTH).reshape(5, WIDTH).double().sin()
        self.places = nn.Parameter(torch.zeros(5, WIDTH) if constant else places.float())

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head((self.table(ids) + self.places).tanh())


class Computes(linen.Module):
    """Computes it; `without`: forgets it."""

    without: bool = False

    @linen.compact
    def __call__(self, ids: Any) -> Any:
        places = np.sin(np.arange(5 * WIDTH).reshape(5, WIDTH)).astype(np.float32)
        x = linen.Embed(WORDS, WIDTH)(ids) + (0.0 if self.without else places)
        return linen.Dense(3)(jnp.tanh(x))


def test_a_table_that_the_target_computes_is_left_out(tmp_path: Path) -> None:
    torch.manual_seed(0)
    found = follow(Positioned(), Computes(), IDS, tmp_path, drop=("places",))
    assert found.proven, found.sentence


@pytest.mark.parametrize("constant", [True, pytest.param(False, marks=pytest.mark.long)])
def test_what_is_left_out_and_missed_is_a_difference(constant: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Positioned(constant)
    found = follow(model, Computes(without=True), IDS, tmp_path, drop=("places",))
    assert not found.proven, found.sentence


class OwnConvolution(nn.Module):
    """Its arrays are no layer's: an image that it starts from, and a kernel that it scales (StyleGAN2's)."""

    def __init__(self) -> None:
        super().__init__()
        self.const, self.into = nn.Parameter(torch.randn(4, 5, 6)), nn.Linear(3, 4)
        self.weight, self.last = nn.Parameter(torch.randn(2, 4, 3, 3)), nn.Linear(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image = self.const * self.into(x)[:, :, None, None]
        image = nn.functional.conv2d(image, self.weight * 0.5, padding=1)
        return self.last(image.tanh().mean((2, 3)))


class FlaxOwnConvolution(linen.Module):
    """The same, channels last."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        const = self.param("const", linen.initializers.normal(), (1, 5, 6, 4))
        kernel = self.param("weight", linen.initializers.normal(), (3, 3, 4, 2))
        image = const * linen.Dense(4)(x)[:, None, None]
        numbers = ("NHWC", "HWIO", "NHWC")
        image = jax.lax.conv_general_dilated(
            image, kernel * 0.5, (1, 1), "SAME", dimension_numbers=numbers
        )
        return linen.Dense(3)(jnp.tanh(image).mean((1, 2)))


def test_a_kernel_and_an_image_of_a_class_of_ones_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    given = [{"x": np.random.default_rng(n).normal(size=(2, 3))} for n in (0, 1)]
    found = follow(OwnConvolution(), FlaxOwnConvolution(), given, tmp_path)
    assert found.proven, found.sentence
