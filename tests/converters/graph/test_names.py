"""Results of a module's call have the names that the original gives them, also where some are not read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from converters.graph import Port, port
from tests.converters.graph.flax_side import variables


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return x.cumsum(-1), self.up(x), self.down(x)


def turned(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    sine = torch.sin(x) * y
    cosine = torch.cos(x) - y
    return (x + y).exp(), sine * 2, cosine.abs()


def same(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    h = torch.tanh(x)
    return h.exp(), h * 2, h.abs()


class Turned(nn.Module):
    """The first result of a function is not read, and its source has no name for the others."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = x.cumsum(-1)
        total, up, down = turned(x, seen)  # noqa: RUF059
        return self.mix(up * torch.tanh(down)) - down.mean()


class Same(Turned):
    """Nothing says which of the results is which."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total, up, down = same(x)  # noqa: RUF059
        return self.mix(up * torch.tanh(down)) - down.mean()


class Net(nn.Module):
    """The first result is not read."""

    def __init__(self) -> None:
        super().__init__()
        self.parts, self.mix = Parts(), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total, raised, lowered = self.parts(x)  # noqa: RUF059
        return self.mix(raised * torch.tanh(lowered)) - lowered.mean()


def test_a_result_that_is_not_read_leaves_the_others_their_names(
    load: Callable[[Port], Any],
) -> None:
    torch.manual_seed(0)
    model, inputs = Net().eval(), {"x": torch.randn(3, 6)}
    made = port(model, inputs)
    assert "raised, lowered = self.parts(x)" in made.modeling
    assert "total" not in made.modeling
    found = load(made).apply(variables(model, made, inputs), x=inputs["x"].numpy())
    np.testing.assert_allclose(found, model(**inputs).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("kind", "wanted"), [(Turned, "up, down = turned("), (Same, "= same(")])
def test_a_function_s_result_has_its_name_or_none(
    kind: type[nn.Module], wanted: str, load: Callable[[Port], Any]
) -> None:
    torch.manual_seed(0)
    model, inputs = kind().eval(), {"x": torch.randn(3, 6)}
    made = port(model, inputs)
    assert wanted in made.modeling
    assert "total" not in made.modeling
    found = load(made).apply(variables(model, made, inputs), x=inputs["x"].numpy())
    np.testing.assert_allclose(found, model(**inputs).detach(), rtol=1e-5, atol=1e-6)
