"""What a forward changes in its model: training that keeps something is refused."""

from __future__ import annotations

import copy

import pytest
import torch

from converters.graph import port
from converters.graph.recording.modes import STATE, compare_modes
from tests.converters.graph import stateful

X = {"x": torch.linspace(-2.0, -1.0, 12).view(3, 4)}
KEPT = {
    stateful.Tracked: "mean (stateful.py:21)",
    stateful.TrackedByData: "mean (stateful.py:29)",
    stateful.TrackedAnew: "mean",
    stateful.TrackedAside: "mean",
    stateful.WarmedUp: "steps",
    stateful.Queue: "seen",
    stateful.Clamped: "lin.weight (stateful.py:92)",
}


@pytest.mark.parametrize("kind", KEPT, ids=lambda kind: kind.__name__)
def test_what_training_keeps_is_found_and_put_back(kind: type[torch.nn.Module]) -> None:
    model = kind().eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    expected = model(**X)
    modes = compare_modes(model, X)
    assert modes.changes == KEPT[kind]
    assert not modes.notes
    assert not model.training
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert torch.equal(model(**X), expected)


@pytest.mark.parametrize("kind", [stateful.Tracked, stateful.TrackedAside])
def test_training_that_keeps_something_is_not_in_a_port(kind: type[torch.nn.Module]) -> None:
    written = port(kind().eval(), X)
    assert not written.trains
    assert written.refused.startswith("the original changes mean")
    assert written.refused.endswith(" in training")
    assert "raise NotImplementedError" in written.modeling
    assert "jnp.array([-" not in written.modeling  # a mean as training left it


def test_what_each_call_changes_is_a_note() -> None:
    model = stateful.Counted().eval()
    written = port(model, X)
    assert written.notes == (f"mean (stateful.py:101): {STATE}",)
    assert not written.refused
    assert not model.mean.any()


def test_what_no_call_reads_is_no_change() -> None:
    model = stateful.Watched().eval()
    written = port(model, X)
    assert written.trains
    assert not written.refused
    assert not written.notes


def test_a_table_of_the_first_call_is_no_change() -> None:
    modes = compare_modes(stateful.Cached().eval(), X)
    assert modes == type(modes)(otherwise=False)


def test_a_recording_that_fails_halfway_leaves_no_tensors_without_numbers() -> None:
    model = stateful.Remembering().eval()
    inputs = {"x": X["x"], "sizes": torch.tensor([2, 2])}
    written = port(model, inputs)
    assert written.notes
    assert written.notes[0].startswith("fixed: sizes")
    copied = copy.deepcopy(model)  # raises for a tensor without numbers
    assert copied.last is not None
    assert torch.equal(copied.last, model(**inputs).flatten())
