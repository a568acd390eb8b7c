"""Functions of a pytree: their parameters are found by what the traced equations do with them."""

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

from converters import convert, load_pytree
from converters.errors import MisfitError
from migrate.parity.fitting.results import Fit
from tests.parity.fitting import below_models
from tests.parity.fitting.below_models import WORDS, Decoder, Function, tree
from tests.parity.fitting.follow import follow

IDS = [{"ids": np.random.default_rng(n).integers(0, WORDS, (2, 7))} for n in (0, 1)]


def fitted(work: Path, form: str = "", wrong: str = "", model: Any = None) -> Fit:
    torch.manual_seed(0)
    model = model or Decoder()
    return follow(model, Function(form, wrong), IDS, work, kind="jax", start=tree())


@pytest.mark.parametrize(
    "form",
    [
        "",
        "folded",
        pytest.param("interleaved", marks=pytest.mark.long),
        pytest.param("folded, interleaved", marks=pytest.mark.long),
        pytest.param("other order", marks=pytest.mark.long),
        pytest.param("one-hot", marks=pytest.mark.long),
        pytest.param("unrolled", marks=pytest.mark.long),
    ],
)
@pytest.mark.long_cases("folded")
def test_a_function_is_fitted_and_its_mapping_converts_alone(form: str, tmp_path: Path) -> None:
    found = fitted(tmp_path, form)
    assert found.proven, found.sentence
    torch.manual_seed(5)
    other = Decoder()
    file = tmp_path / "other.pt"
    torch.save(other.state_dict(), file)
    output = tmp_path / "other.safetensors"
    convert(file, output=output, mapping=tmp_path / "mapping.yaml")
    with torch.no_grad():
        truth = other(torch.from_numpy(IDS[0]["ids"])).numpy()
    mine = np.asarray(Function(form)(load_pytree(output), IDS[0]["ids"]))
    assert np.abs(truth - mine).max() < 1e-4 * np.abs(truth).max()


@pytest.mark.long
def test_a_query_with_as_many_elements_as_key_and_value_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(below_models, "HEADS", 2)  # key and value have one head each
    found = fitted(tmp_path)
    assert found.proven, found.sentence


# What is wrong → the parameter in whose use, or before it, it is seen.
WRONG = {
    "eps": "all/a",
    "no rotation": "all/o",
    "relu": "all/down",
}


@pytest.mark.parametrize(
    "wrong", [one if one == "relu" else pytest.param(one, marks=pytest.mark.long) for one in WRONG]
)
def test_what_is_done_otherwise_is_never_proven(wrong: str, tmp_path: Path) -> None:
    found = fitted(tmp_path, wrong=wrong)
    assert not found.proven
    assert found.differences[0].layer == WRONG[wrong], found.sentence
    assert "below_models.py:" in found.differences[0].called


class Projected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.heads, self.back = nn.LayerNorm(6), nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.back(self.heads(self.norm(x)).tanh())


class ByEinsum(linen.Module):
    """Its norm is a layer; what follows are arrays of its own, in no shape that torch's have."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = linen.LayerNorm(epsilon=1e-5, use_fast_variance=False)(x)
        into = self.param("into", linen.initializers.normal(), (2, 6, 4))
        added = self.param("added", linen.initializers.zeros, (2, 4))
        back = self.param("back", linen.initializers.normal(), (3, 2, 4))
        x = jnp.tanh(jnp.einsum("bd,ndh->bnh", x, into) + added)
        last = self.param("last", linen.initializers.zeros, (3,))
        return jnp.einsum("bnh,cnh->bc", x, back) + last


def test_arrays_of_a_modules_own_are_found_below_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    given = [{"x": np.random.default_rng(n).normal(size=(5, 6))} for n in (0, 1)]
    found = follow(Projected(), ByEinsum(), given, tmp_path)
    assert found.proven, found.sentence


def test_what_the_function_does_not_read_has_no_place(tmp_path: Path) -> None:
    with pytest.raises(MisfitError) as raised:
        fitted(tmp_path, wrong="no norm", model=Decoder())
    assert raised.value.misfits


class Normed(nn.Module):
    """Convolutions, each with a BatchNorm behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.other = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.Conv2d(4, 4, 1)
        self.norm, self.last, self.head = nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        return self.head((x + self.last(self.other(x))).mean((2, 3)))


def of_normed(key: Any) -> Any:
    """What the functions below take: kernels, and of each norm its four arrays."""
    del key
    norms = {one: {name: jnp.ones((1, 1, 1, 4)) for name in "mvso"} for one in ("n", "l")}
    kernels = {"a": (3, 3, 3, 4), "b": (1, 1, 4, 4), "c": (4,), "h": (4, 2), "k": (2,)}
    return norms | {name: jnp.ones(shape) for name, shape in kernels.items()}


def normed(norm: Any, image: str = "NHWC", eps: float = 1e-5) -> Any:
    """A function of the parameters that normalizes so."""

    def conv(x: Any, kernel: Any) -> Any:
        numbers = (image, "HWIO", image)
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)

    def along(one: Any) -> Any:
        return one.reshape(-1)[(None, slice(None), None, None) if image == "NCHW" else None]

    def apply(p: Any, x: Any) -> Any:
        def by(x: Any, own: Any) -> Any:
            return norm(x, *(along(own[name]) for name in "mvso"), eps)

        x = jax.nn.relu(by(conv(x, p["a"]), p["n"]))
        x = x + by(conv(x, p["b"]) + along(p["c"]), p["l"])
        return x.mean([image.index(one) for one in "HW"]) @ p["h"] + p["k"]

    return apply


def as_haiku(x: Any, mean: Any, var: Any, scale: Any, offset: Any, eps: float) -> Any:
    return (x - mean) * (scale * jax.lax.rsqrt(var + eps)) + offset


def as_equinox(x: Any, mean: Any, var: Any, scale: Any, offset: Any, eps: float) -> Any:
    return (x - mean) / jnp.sqrt(jnp.maximum(var, 0.0) + eps) * scale + offset


PLANES = [{"x": np.random.default_rng(n).normal(size=(2, 3, 5, 5))} for n in (0, 1)]


@pytest.mark.parametrize(
    ("function", "image"),
    [
        pytest.param(as_haiku, "NHWC", id="haiku"),
        pytest.param(as_equinox, "NCHW", id="equinox", marks=pytest.mark.long),
    ],
)
def test_a_norm_that_keeps_its_variance(function: Any, image: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    last = ("x",) if image == "NHWC" else ()
    given = {"kind": "jax", "start": of_normed, "channels_last": last}
    found = follow(Normed(), normed(function, image), PLANES, tmp_path, **given)
    assert found.proven, found.sentence
    places = {row.key: row.path for row in found.plan.mapped}
    names = {"weight": "s", "bias": "o", "running_mean": "m", "running_var": "v"}
    for layer, its in (("norm", "n"), ("last", "l")):
        assert all(places[f"{layer}.{key}"] == f"{its}/{one}" for key, one in names.items())


def test_a_norm_with_another_epsilon_is_never_proven(tmp_path: Path) -> None:
    torch.manual_seed(0)
    given = {"kind": "jax", "start": of_normed, "channels_last": ("x",)}
    found = follow(Normed(), normed(as_haiku, eps=1e-3), PLANES, tmp_path, **given)
    assert not found.proven
    assert found.differences[0].truth == "norm", found.sentence
