"""Source that one would keep: names, layouts, classes and messages of models that once had none such."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from converters.graph import GraphError, Port, port
from converters.graph.writing.model import Limits
from tests.converters.graph import as_kept
from tests.converters.graph.flax_side import Inputs, variables

WAYS = ("view", "list", "lines", "unbind")
CASES: dict[str, tuple[Callable[[], Any], dict[str, tuple[int, ...]]]] = {
    **{f"heads {way}": (partial(as_kept.Heads, way=way), {"x": (2, 5, 12)}) for way in WAYS},
    "film": (as_kept.Film, {"x": (2, 3, 8, 7), "t": (2, 5)}),
    "film beside": (as_kept.FilmBeside, {"x": (2, 3, 8, 7), "t": (2, 5)}),
    "latents": (as_kept.Latents, {"x": (2, 7, 8)}),
    "recurrent": (as_kept.Recurrent, {"x": (2, 3, 3)}),
    "dilated": (as_kept.Dilated, {"x": (2, 4, 9)}),
    "pairs": (as_kept.Pairs, {"x": (2, 6)}),
    "angles": (as_kept.Angles, {"x": (2, 4)}),
    "said": (as_kept.Said, {"x": (2, 6)}),
    "two of two": (as_kept.TwoOfTwo, {"x": (2, 7, 12)}),
    "tabled": (as_kept.Tabled, {"x": (2, 7, 12)}),
    "turned twice": (as_kept.TurnedTwice, {"x": (2, 7, 12)}),
}


def drawn(name: str) -> Inputs:
    generator = torch.Generator().manual_seed(1)
    return {key: torch.randn(shape, generator=generator) for key, shape in CASES[name][1].items()}


@cache
def made(name: str) -> tuple[Any, Port]:
    torch.manual_seed(0)
    model = CASES[name][0]().eval()
    return model, port(model, drawn(name))


def source(name: str) -> str:
    return made(name)[1].modeling


@pytest.mark.parametrize("name", CASES)
@pytest.mark.long_cases("latents", "film", "heads list", "dilated")
def test_it_computes_what_torch_does(name: str, load: Any) -> None:
    model, written = made(name)
    inputs = drawn(name)
    arrays = {key: jnp.asarray(one.numpy()) for key, one in inputs.items()}
    with jax.default_matmul_precision("highest"):
        found = load(written).apply(variables(model, written, inputs), **arrays)
    with torch.no_grad():
        wanted = model(**inputs)
    pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]
    for one, other in pairs:
        assert one.shape == tuple(other.shape)
        assert np.linalg.norm(one - other.numpy()) <= 2e-6 * np.linalg.norm(other.numpy())


@pytest.mark.parametrize("way", WAYS)
def test_queries_keys_and_values_have_their_names(way: str) -> None:
    text = source(f"heads {way}")
    assert "w = jax.nn.softmax(q @ k.swapaxes(-2, -1), axis=-1)" in text
    assert "(w @ v)" in text
    assert "q_2" not in text


def test_what_has_one_number_for_each_channel_is_turned_itself() -> None:
    """The image is turned at the model's border only."""
    text = source("film")
    assert "h = self.norm(h) * (scale + 1) + shift" in text  # the numbers of channels lie last, too
    assert text.count("jnp.moveaxis(") == 2
    assert "self.emb(t)[:, None, None]" in text


def test_comments_on_images_stay_but_for_those_on_axes() -> None:
    text = source("film")
    assert "        # FiLM\n        h = self.norm(h)" in text
    assert "channels, 1, 1" not in text


def test_sizes_are_those_of_what_is_shaped() -> None:
    """So that a call with another context is a call of the same class."""
    text = source("latents")
    assert text.count("class Cross") == 1
    assert "def folded(x: Array) -> Array:" in text
    assert "q = folded(q)" in text


def test_a_result_that_nobody_reads_makes_no_other_form() -> None:
    text = source("recurrent")
    assert text.count("class Cell") == 1
    assert "call_1" not in text
    assert "    features: int\n" in text


def test_a_side_is_the_size_that_its_place_in_a_reshape_names() -> None:
    assert ".reshape(*x.shape[:2], 2, self.config.heads, 5)" in source("two of two")


@pytest.mark.parametrize("name", ["said", "tabled"])
def test_a_source_that_is_written_again_is_the_same(name: str) -> None:
    """Sizes that are tried are written each time."""
    written = made(name)[1]
    assert written.limited(Limits()).modeling == written.modeling


def test_a_table_that_sizes_give_is_computed() -> None:
    text = source("tabled")
    for written in (
        "        inverse = self.config.base ** ",
        "        angles = jnp.outer(jnp.arange(self.config.longest, dtype=jnp.float32), inverse)\n",
        "        self.cos = jnp.cos(angles)\n",
        "        self.both = jnp.sin(jnp.concatenate([angles, angles], axis=-1))\n",
        "        self.other = self.variable('buffers', 'other', stored",
    ):
        assert written in text


def test_docstrings_of_the_users_classes_stay_whole() -> None:
    text = source("said")
    assert (
        '"""Scales, then mixes.\n\n    The scale is\n        one for each column.\n    """' in text
    )
    assert '"""x: (rows, width), of any length.\n\n        Gives as many rows.\n        """' in text


def test_comments_of_the_constructor_stay() -> None:
    text = source("said")
    assert "        # measured once,\n        # by hand\n        self.scale = " in text
    assert text.count("# two of a kind\n        self.a = ") == text.count("two of a kind") == 1


def test_a_dilation_of_1_makes_no_other_class() -> None:
    text = source("dilated")
    assert text.count("class Layer") == 1
    assert "kernel_dilation=(self.kernel_dilation,)" in text


def test_layers_that_one_line_makes_follow_their_sizes() -> None:
    text = source("pairs")
    for name, size in (("up", "inner"), ("down", "width"), ("first", "width"), ("gate", "inner")):
        assert f"self.{name} = nn.Dense(self.config.{size}, " in text


def test_what_is_computed_where_it_is_returned_stands_there() -> None:
    text = source("angles")
    assert "return jnp.cos(x) * 2, jnp.sin(x)" in text
    assert ".T.T" not in text


@pytest.mark.long
def test_rows_by_a_mask_are_refused_with_their_line_alone() -> None:
    """No line of this project, and none of torch's advice."""
    with pytest.raises(GraphError) as error:
        port(as_kept.Masked(), {"x": torch.randn(4, 6)})
    said = str(error.value)
    assert "as_kept.py:" in said
    assert "a size rests on values, those of where: rows, nth = torch.where(chosen == i)" in said
    assert "traceback" not in said.lower()
    assert "ported.py" not in said
    assert len(said) < 300
