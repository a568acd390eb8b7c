"""Functions of a pytree: their parameters are found by what the traced equations do with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
