"""Copies of modules share nothing with the original, functions that they keep included."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from converters.copied import copied


class Closing(nn.Module):
    """Its forward is a function of its own layers, as minGPT's blocks have it."""

    def __init__(self) -> None:
        super().__init__()
        layers = self.layers = nn.ModuleDict({"fc": nn.Linear(2, 2)})
        other = torch.relu

        def run(x: torch.Tensor, again: int = 1) -> torch.Tensor:
            return run(x, 0) if again else other(layers["fc"](x))

        self.run = lambda x: run(x)
        self.plain = torch.tanh

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x)


def test_a_function_of_the_copy_runs_the_copys_layers() -> None:
    torch.manual_seed(0)
    model = Closing()
    made = copied(model)
    before = model(torch.ones(1, 2))
    with torch.no_grad():
        made.layers["fc"].weight.fill_(1.0)
        made.layers["fc"].bias.fill_(1.0)
    assert made(torch.ones(1, 2)).tolist() == [[3.0, 3.0]]
    assert torch.equal(model(torch.ones(1, 2)), before)
    assert made.plain is torch.tanh


def test_a_copy_in_float64_computes_in_float64() -> None:
    assert copied(Closing()).double()(torch.ones(1, 2).double()).dtype == torch.float64


def test_what_a_module_keeps_of_its_last_pass_is_made_anew() -> None:
    with pytest.warns(FutureWarning, match="weight_norm"):
        model = torch.nn.utils.weight_norm(nn.Linear(3, 2))
    made = copied(model)
    with torch.no_grad():
        made.weight_g.zero_()
        made.bias.zero_()
    assert not made(torch.ones(1, 3)).any()
    assert model(torch.ones(1, 3)).any()
