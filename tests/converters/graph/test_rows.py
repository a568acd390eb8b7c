"""Rows that a mask chooses: all rows are computed, and those that are not chosen are dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch

from converters.graph import GraphError, Port, port
from converters.graph.recording.rows.checked import ROWS
from tests.converters.graph import rows
from tests.converters.graph.flax_side import variables

Load = Callable[[Port], Any]
# Rows that choose all experts in a recording, and rows alike, which leave some of them out.
DRAWN = torch.randn(7, 6, generator=torch.Generator().manual_seed(0))
ALIKE = DRAWN[:1].repeat(7, 1)


@pytest.mark.parametrize(
    "kind",
    [
        rows.ByMask,
        rows.ByPlaces,
        rows.ByRows,
        rows.ByHits,
        rows.ByName,
        rows.BySplit,
        rows.BySlices,
    ],
)
@pytest.mark.long_cases("ByPlaces", "ByMask", "ByRows", "ByHits", "BySlices", "ByName")
def test_values_and_gradients_are_those_of_torch(kind: type[rows.Mixture], load: Load) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    written = port(model, {"x": DRAWN})
    assert not written.missing
    assert any(note.startswith(ROWS) for note in written.notes)
    flax, weights = load(written), variables(model, written, {"x": DRAWN})

    def loss(weights: Any, x: Any) -> Any:
        out = flax.apply(weights, x=x)
        return (out * np.cos(np.arange(out.size, dtype=np.float32).reshape(out.shape))).sum(), out

    for value in (DRAWN, ALIKE):
        x = value.clone().requires_grad_()
        out = model(x)
        model.zero_grad()
        (
            out * torch.cos(torch.arange(out.numel(), dtype=torch.float32).view_as(out))
        ).sum().backward()
        (of_weights, of_x), mine = jax.grad(loss, (0, 1), has_aux=True)(weights, value.numpy())
        np.testing.assert_allclose(mine, out.detach(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(of_x, x.grad, rtol=1e-4, atol=1e-5)
        kernel = of_weights["params"]["experts_1"]["up"]["kernel"]
        of_torch = model.experts[1].up.weight.grad
        wanted = np.zeros(kernel.shape) if of_torch is None else of_torch.numpy().T
        np.testing.assert_allclose(kernel, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "kind", [rows.Centered, rows.Shared, rows.Counted, rows.Averaged, rows.Many]
)
@pytest.mark.long_cases("Shared", "Many", "Averaged")
def test_rows_that_depend_on_each_other_are_not_in_a_port(kind: type[torch.nn.Module]) -> None:
    assert "refused" in outcome(kind().eval())


def outcome(model: torch.nn.Module) -> str:
    """What became of a port: written, or why not."""
    try:
        written = port(model, {"x": DRAWN})
    except GraphError as error:
        return f"refused: {error}"
    return "refused: an operator is missing" if written.missing else written.modeling


def test_a_loop_over_experts_stays_one() -> None:
    source = outcome(rows.ByFirst().eval())
    assert "for i, expert in enumerate(self.experts):" in source
    assert "out = jnp.where(rows[..., None], expert(x), out)" in source
