"""Forms of a loss for batches of other sizes."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from migrate.port.compiler import compiled
from migrate.port.errors import PortError
from migrate.train.watch.sizes import broken, fits, form_names, with_forms


class Padded(nn.Module):
    """Pads the shorter one of two sides, as a collate function would."""

    def forward(self, better: torch.Tensor, worse: torch.Tensor) -> torch.Tensor:
        return self.joined(better, worse).sum()

    def joined(self, better: torch.Tensor, worse: torch.Tensor) -> torch.Tensor:
        """Rows of both sides."""
        length = max(better.shape[1], worse.shape[1])

        def padded(side: torch.Tensor) -> torch.Tensor:
            if side.size(1) >= length:
                return side
            fill = side.new_full((side.size(0), length - side.size(1)), 7)
            return torch.cat([side, fill], dim=1)

        return torch.cat([padded(better), 2 * padded(worse)])

    of_other_sizes = of_other_sizes_2 = forward


class Recurrent(nn.Module):
    """A loop over tokens."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        state, states = torch.zeros(values.shape[0]), []
        for index in range(values.shape[1]):
            state = 0.9 * state + values[:, index]
            states.append(state.tanh())
        return torch.stack(states, 1)[:, -4:].sum()

    of_other_sizes = of_other_sizes_2 = forward


def examples(*sizes: dict[str, int]) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        {name: torch.rand(2, size, generator=generator) for name, size in own.items()}
        for own in sizes
    ]


def shapes(inputs: dict[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in inputs.items()}


def ported(module: nn.Module, first: Any, *others: Any) -> tuple[Any, Any]:
    methods = dict(zip(form_names(len(others)), others, strict=True))
    port = compiled(module, first, "train.py", methods=methods)
    return port, with_forms(port, shapes(first), [shapes(other) for other in others])


def run(port: Any, inputs: dict[str, torch.Tensor]) -> float:
    package = {}
    for name, source in (("config", port.config), ("modeling", port.modeling)):
        module = ModuleType(f"of_sizes_{name}")
        sys.modules[module.__name__] = module
        exec(source.replace("from .config", "from of_sizes_config"), vars(module))
        package |= vars(module)
    step = package[port.model_class](package[port.config_class]())
    return float(step.apply({}, **{n: jnp.asarray(x.numpy()) for n, x in inputs.items()}))


def test_a_batch_of_other_sizes_takes_the_branch_that_the_script_takes() -> None:
    first, longer, shorter = examples(
        {"better": 4, "worse": 4}, {"better": 3, "worse": 5}, {"better": 5, "worse": 3}
    )
    alone = compiled(Padded(), longer, "train.py")
    assert fits(alone, shapes(longer))
    assert not fits(alone, shapes(shorter))  # the recording has one branch
    assert [bound.condition for bound in alone.bounds] == [
        "better.shape[1] < worse.shape[1]",
        "worse.shape[1] >= better.shape[1]",
    ]
    port, whole = ported(Padded(), first, longer, shorter)
    assert not broken(port, shapes(first))
    more = examples({"better": 2, "worse": 6}, {"better": 9, "worse": 4}, {"better": 3, "worse": 3})
    for inputs in (first, longer, shorter, *more):
        assert fits(port, shapes(inputs))
        np.testing.assert_allclose(run(whole, inputs), float(Padded()(**inputs)), rtol=1e-6)


class PaddedInPlace(Padded):
    """The same, with a change in place: it is recorded a second time, without the change."""

    def forward(self, better: torch.Tensor, worse: torch.Tensor) -> torch.Tensor:
        joined = self.joined(better, worse).clone()
        joined[joined < 0.2] = 0
        return joined.sum()

    of_other_sizes = of_other_sizes_2 = forward


def test_a_recording_with_one_column_of_padding_holds_for_one_column() -> None:
    """Torch asks whether that column is contiguous, and its answer ties the two sides."""
    first, other, more = examples(
        {"better": 6, "worse": 5}, {"better": 7, "worse": 4}, {"better": 5, "worse": 2}
    )
    alone = compiled(PaddedInPlace(), first, "train.py")
    assert broken(alone, shapes(other)) == ["better.shape[1] == 1 + worse.shape[1]"]
    _, whole = ported(PaddedInPlace(), first, other)
    for inputs in (first, other, more):
        np.testing.assert_allclose(run(whole, inputs), float(PaddedInPlace()(**inputs)), rtol=1e-6)


def test_a_loop_over_tokens_has_any_length_if_its_source_has_none() -> None:
    first, longer, other = examples({"values": 6}, {"values": 8}, {"values": 5})
    port, whole = ported(Recurrent(), first, longer, other)
    assert broken(port, shapes(longer)) == ["values.shape[1] == 6"]
    assert "of_other_sizes" not in whole.modeling
    [argument] = whole.inputs
    assert argument.shape == ("batch", "values_1")
    for inputs in (first, longer, other):
        np.testing.assert_allclose(run(whole, inputs), float(Recurrent()(**inputs)), rtol=1e-6)


class Lengths(nn.Module):
    """A loop over tokens whose length is in the source: `[:, :6]`."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        length, total = values.shape[1], torch.zeros(())
        for index in range(length):
            total = total + values[:, index].sum() * index
        return total + torch.cat([values, values], 1)[:, :length].sum()

    of_other_sizes = of_other_sizes_2 = forward


def test_each_length_has_a_form_if_the_source_has_the_length() -> None:
    first, longer, other = examples({"values": 6}, {"values": 8}, {"values": 3})
    _, whole = ported(Lengths(), first, longer, other)
    for inputs in (first, longer, other):
        np.testing.assert_allclose(run(whole, inputs), float(Lengths()(**inputs)), rtol=1e-6)
    [unseen] = examples({"values": 5})
    with pytest.raises(ValueError, match="no batch of these sizes"):
        run(whole, unseen)


def test_forms_that_hold_for_the_same_sizes_are_refused() -> None:
    source = (
        "class Step:\n    def __call__(self, x):\n        return x\n\n"
        "    def of_other_sizes(self, x):\n        return -x\n"
    )
    inputs = (SimpleNamespace(name="x", shape=("batch",)),)
    method = SimpleNamespace(name="of_other_sizes", inputs=inputs, bounds=())
    port = SimpleNamespace(
        modeling=source, model_class="Step", inputs=inputs, bounds=(), methods=(method,)
    )
    with pytest.raises(PortError, match="the same sizes"):
        with_forms(port, {"x": (2,)}, [{"x": (3,)}])
