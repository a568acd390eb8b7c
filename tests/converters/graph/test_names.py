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


def scored(
    left: torch.Tensor, right: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    total = (scale * left) @ right.T
    return total.mean(), total


class Spread(nn.Module):
    """What a module returns goes into a function, and the line names the function's results."""

    def __init__(self) -> None:
        super().__init__()
        self.parts, self.mix = Parts(), nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, total = scored(*self.parts(x))
        return self.mix(total) - mean


def test_results_that_a_call_spreads_have_the_function_s_names(
    load: Callable[[Port], Any],
) -> None:
    torch.manual_seed(0)
    model, inputs = Spread().eval(), {"x": torch.randn(3, 6)}
    made = port(model, inputs)
    assert "def scored(left: Array, right: Array, scale: Array)" in made.modeling
    (line,) = [line for line in made.modeling.splitlines() if "= self.parts(x)" in line]
    assert "mean" not in line
    assert "total" not in line
    found = load(made).apply(variables(model, made, inputs), x=inputs["x"].numpy())
    np.testing.assert_allclose(found, model(**inputs).detach(), rtol=1e-5, atol=1e-6)


def shifted(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x * (1 + scale) + shift


def rotated(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack((-b, a), dim=-1).flatten(-2)
    return x * torch.cos(angle) + turned * torch.sin(angle)


class Waves(nn.Module):
    def __init__(self, period: int = 1000) -> None:
        super().__init__()
        steps = torch.arange(4) / 4
        self.register_buffer("steps", torch.exp(-torch.tensor(float(period)).log() * steps))

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        return torch.sin(t * self.steps)


class Conditioned(nn.Module):
    """A stack that a loop appends, and functions that are given what their calls compute."""

    def __init__(self, depth: int = 3, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        stack = []
        for _ in range(depth):
            stack.append(nn.Linear(32, 32))
        self.stack = nn.ModuleList(stack)
        self.waves, self.norm, self.cond = Waves(), nn.LayerNorm(32), nn.Linear(4, 64)
        self.table = nn.Parameter(torch.randn(1, 6, 32))

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shift, scale = self.cond(self.waves(t))[:, None].chunk(2, dim=-1)
        h = shifted(self.norm(x + self.table), shift, scale)
        for layer in self.stack:
            h = layer(h)
        h = h.reshape(len(h), -1, self.heads, 8).transpose(1, 2)
        h = rotated(h[..., 2:] * 1, h.cumsum(1)[..., 2:])
        return h - h.max(dim=-1, keepdim=True).values, h


def test_what_a_line_computes_for_a_function_has_the_function_s_names(
    load: Callable[[Port], Any],
) -> None:
    torch.manual_seed(0)
    model, inputs = Conditioned().eval(), {"x": torch.randn(2, 6, 32), "t": torch.rand(2, 1)}
    arguments = {"": {"depth": 3, "heads": 4}}
    made = port(model, inputs, arguments=arguments)
    assert "def shifted(x: Array, shift: Array, scale: Array) -> Array:" in made.modeling
    assert "def rotated(x: Array, angle: Array) -> Array:" in made.modeling
    assert "range(self.config.depth)" in made.modeling
    assert "x.reshape(*x.shape[:3], -1, 2)" in made.modeling  # 3 is also the depth
    assert "h - largest(h, axis=-1, keepdims=True)" in made.modeling  # without the index
    assert made.settings["period"] == 1000.0
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    found = load(made).apply(variables(model, made, inputs), **arrays)
    for one, other in zip(found, model(**inputs), strict=True):
        np.testing.assert_allclose(one, other.detach(), rtol=1e-5, atol=1e-5)


class Named(nn.Module):
    """A list of layers with the name of an argument that is read after the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.text = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = text
        for block in self.text:
            x = torch.tanh(block(x))
        return x * (text > 0).sum(dim=-1, keepdim=True)


def test_a_loop_over_layers_does_not_hide_an_argument(load: Callable[[Port], Any]) -> None:
    torch.manual_seed(0)
    model, inputs = Named().eval(), {"text": torch.randn(2, 6)}
    made = port(model, inputs)
    assert "for text_part in self.text:" in made.modeling
    found = load(made).apply(variables(model, made, inputs), text=inputs["text"].numpy())
    np.testing.assert_allclose(found, model(**inputs).detach(), rtol=1e-5, atol=1e-6)
