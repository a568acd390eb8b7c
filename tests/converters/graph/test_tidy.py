"""Indices that add axes, as one writes them: the array stays the same."""

from __future__ import annotations

import ast

import numpy as np
import pytest
import torch

from converters.graph.writing.tidy import tidied


@pytest.mark.parametrize(
    ("index", "written"),
    [
        ("[:, None, :][:, :, None, :]", "[:, None, None]"),
        # Of the first axes, whatever follows: as `[..., None, None]` it would be the last ones.
        ("[:, None, None]", "[:, None, None]"),
        ("[:, None][..., None, :]", "[:, None][..., None, :]"),
        ("[..., None][..., None]", "[..., None, None]"),
        ("[None][:, :, :, None]", "[None, :, :, None]"),
        ("[:, :, None][:, None]", "[:, None, :, None]"),
        ("[:, None][..., None]", "[:, None][..., None]"),
    ],
)
def test_axes_are_added_at_the_same_places(index: str, written: str) -> None:
    values = {"x": np.arange(6).reshape(2, 3)}
    text = ast.unparse(tidied(ast.parse(f"x{index}", mode="eval").body))
    assert text == f"x{written}"
    np.testing.assert_array_equal(eval(text, values), eval(f"x{index}", values))


def test_the_limits_of_float32_have_their_names() -> None:
    """A mask is filled with them: nobody recognizes -3.4028234663852886e+38."""
    most = float(torch.finfo(torch.float32).max)
    text = ast.unparse(tidied(ast.parse(f"jnp.where(mask, -{most}, {most})", mode="eval").body))
    assert text == "jnp.where(mask, jnp.finfo(jnp.float32).min, jnp.finfo(jnp.float32).max)"
