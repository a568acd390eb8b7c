"""The ways around what torch.export does not record."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import pytest
import torch

from converters.graph import port
from converters.graph.recording.detours import masks_by_index, values_known
from converters.graph.recording.reading import read_inputs
from converters.graph.recording.trace import trace
from converters.graph.writing.model import Limits
from tests.converters.graph import models


def test_masks_by_index_are_those_of_vmap() -> None:
    from transformers import masking_utils as masks

    groups = torch.tensor([[0, 0, -1, 1, 1], [-1, -1, 2, 2, -1]])
    wanted = masks.or_masks(masks.causal_mask_function, masks.blockwise_overlay(groups))
    padding = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]).bool()

    def made() -> torch.Tensor:
        found = masks.sdpa_mask(
            2, 5, 5, mask_function=wanted, attention_mask=padding, use_vmap=True, device="cpu"
        )
        assert found is not None
        return found

    expected = made()
    with masks_by_index():
        assert torch.equal(made(), expected)
    assert torch.equal(made(), expected)


class Branches(torch.nn.Module):
    """Two branches, each with numbers of its own, which each recording calls its first constant."""

    def __init__(self, by_mode: bool) -> None:
        super().__init__()
        self.by_mode = by_mode

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        first = self.training if self.by_mode else scale is None
        x = x * torch.tensor([1.0, 2.0, 4.0] if first else [3.0, 5.0, 7.0])
        return x if scale is None else x * scale


@pytest.mark.parametrize("by_mode", [True, False])
def test_each_branch_keeps_its_own_numbers(by_mode: bool) -> None:
    inputs = {"x": torch.randn(2, 3)} | ({} if by_mode else {"scale": torch.randn(2, 3)})
    source = port(Branches(by_mode).eval(), inputs).modeling
    assert "jnp.array([3.0, 5.0, 7.0]" in source
    assert "jnp.array([1.0, 2.0, 4.0]" in source or "training and evaluation differ" in source


class Pair(NamedTuple):
    """Scores and what they add up to."""

    scores: torch.Tensor  # (rows,)
    total: torch.Tensor


@dataclass
class Held:
    scores: torch.Tensor
    total: torch.Tensor
    loss: torch.Tensor | None = None


@dataclass
class Counted:
    scores: torch.Tensor
    total: torch.Tensor
    count: int = 3


Plain = namedtuple("Plain", ("scores", "total"))


@pytest.mark.parametrize(
    ("made", "lines"),
    [
        (
            Pair,
            (
                "class Pair(NamedTuple):",
                "    # (rows,)\n    scores: Array",
                ") -> Pair:",
                "return Pair(",
            ),
        ),
        (Plain, ("class Plain(NamedTuple):\n    scores: Array\n    total: Array", ") -> Plain:")),
        (
            Held,
            ("@flax.struct.dataclass\nclass Held:", "    loss: Array | None = None", ") -> Held:"),
        ),
        (
            lambda *both: (Pair(*both), both[0]),
            (") -> tuple[Pair, Array]:",),
        ),
    ],
)
def test_a_port_returns_the_records_of_the_original(
    made: Any, lines: Sequence[str], load: Any
) -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return made(x * 2, x.sum())

    written = port(Net().eval(), {"x": torch.ones(3)})
    for line in lines:
        assert line in written.modeling
    assert not written.notes
    assert written.limited(Limits()).modeling == written.modeling
    found = load(written).apply({}, x=jnp.ones(3))
    found = found[0] if type(found) is tuple else found
    assert found.scores.tolist() == [2, 2, 2]
    assert found.total == 3
    assert {output.code for output in written.outputs} >= (
        {"outputs.scores"} if "tuple" not in lines[0] else {"outputs[0].scores", "outputs[1]"}
    )


@pytest.mark.parametrize(
    ("made", "notes"),
    [
        (Counted, ("`Counted`, a dataclass of the original, is a dict of its fields here",)),
        (lambda *both: both, ()),
        (lambda scores, total: {"scores": scores, "total": total}, ()),
    ],
)
def test_a_class_of_the_result_that_a_port_lacks_is_noted(made: Any, notes: tuple[str]) -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return made(x * 2, x.sum())

    assert port(Net().eval(), {"x": torch.randn(3, 4)}).notes == notes


def test_an_input_that_is_read_is_found() -> None:
    inputs = {"x": torch.randn(10, 4), "grid": torch.tensor([[2, 3], [1, 4]])}
    assert read_inputs(models.Grid(), inputs) == ("grid",)


def test_ids_that_look_up_a_table_are_not_fixed() -> None:
    assert read_inputs(models.Checked(), {"ids": torch.ones(2, 3, dtype=torch.int64)}) == ()


def test_what_rests_on_weights_too_cannot_be_fixed() -> None:
    class Routed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, sizes: torch.Tensor) -> torch.Tensor:
            return torch.zeros(int((self.weight * sizes).sum()))

    assert read_inputs(Routed(), {"sizes": torch.tensor([1, 2, 3])}) == ()


def test_the_limits_of_constants_are_set_back() -> None:
    from torch._subclasses import fake_tensor
    from torch.fx.experimental import proxy_tensor

    before = fake_tensor.CONSTANT_NUMEL_LIMIT, proxy_tensor.CONSTANT_NUMEL_LIMIT
    with values_known(True):
        assert before[0] < fake_tensor.CONSTANT_NUMEL_LIMIT
    assert before == (fake_tensor.CONSTANT_NUMEL_LIMIT, proxy_tensor.CONSTANT_NUMEL_LIMIT)


@pytest.mark.parametrize("viewed", [False, True])
def test_what_is_changed_in_place_is_recorded_once_where_nothing_shares_its_memory(
    viewed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = []
    before = torch.export.ExportedProgram.run_decompositions

    def counted(self: torch.export.ExportedProgram, *given: Any) -> torch.export.ExportedProgram:
        again.append(given)
        return before(self, *given)

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", counted)
    trace(models.Changes(viewed).eval(), {"x": torch.randn(3, 4)})
    assert bool(again) == viewed
