"""A module and its twin, captured as the comparison does it, in this process."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from migrate.parity.causes import Context, explain
from migrate.parity.causes.frame.compared_tensors import relative
from migrate.parity.causes.frame.pattern import FaultExample
from migrate.parity.dump.dump import Dump
from migrate.parity.dump.reference import Forced
from migrate.parity.ground.alignment import LayerAlignment, Pair, TensorPair
from migrate.parity.ground.results import ParityCause
from migrate.parity.ground.settings import TRUTH, SideSettings
from migrate.parity.inputs.set import write_inputs
from migrate.parity.sides.capture import capture_into
from migrate.parity.sides.torch.runner import TorchRunner
from tests.waiting import LIMIT

INPUTS = 2
FLOAT32 = SideSettings()


def _same_model(truth: Dump, mine: Dump) -> LayerAlignment:
    """Pair layers by their names, and their tensors by paths and shapes."""
    theirs = {(call.layer, call.number, call.input): call for call in truth.calls}
    pairs: dict[str, Pair] = {}
    for call in mine.calls:
        same = theirs.get((call.layer, call.number, call.input))
        if same is None:
            continue
        parts = []
        for part in ("arguments", "outputs"):
            shapes = {ref.path: ref.shape for ref in getattr(same, part)}
            refs = getattr(call, part)
            parts.append(
                tuple(TensorPair(r.path, r.path) for r in refs if shapes.get(r.path) == r.shape)
            )
        pairs[call.layer] = Pair(call.layer, call.layer, "same model", None, None, *parts)
    whole = tuple(TensorPair(ref.path, ref.path) for ref in truth.outputs[0])
    return LayerAlignment(tuple(pairs.values()), whole)


class Compared:
    """An example that was captured.

    Attributes:
        model: the truth in float64.
        context: what `explain` is told.
        difference: relative L2 of the outputs as the twin runs.
    """

    def __init__(
        self, example: FaultExample, folder: Path, *, clean: bool, settings: SideSettings, seed: int
    ) -> None:
        torch.manual_seed(seed)
        truth = example.truth().double().eval()
        made = [example.inputs() for _ in range(INPUTS)]
        arrays = [{str(n): tensor.numpy() for n, tensor in enumerate(one)} for one in made]
        inputs = write_inputs(folder / "inputs", arrays)
        twin = copy.deepcopy(truth)
        twin = twin if clean else example.faulty(twin)
        runner = TorchRunner(truth, "torch", "truth")
        side = TorchRunner(twin, "torch", "twin")
        capture_into(runner, TRUTH, inputs, folder / "truth")
        capture_into(side, settings, inputs, folder / "side")
        t, mine = Dump(folder / "truth"), Dump(folder / "side")
        alignment = _same_model(t, mine)
        forced = Forced(folder / "truth", alignment)
        capture_into(side, settings, inputs, folder / "local", forced=forced)
        self.model: nn.Module = truth
        self.alignment = alignment
        self.context = Context(
            layer=example.layer,
            number=0,
            truth=t,
            local=Dump(folder / "local"),
            accumulated=mine,
            alignment=alignment,
            side_layer=example.layer,
            settings=mine.layers[example.layer].settings if example.layer in mine.layers else {},
            truth_settings=t.layers[example.layer].settings,
            dtype=settings.dtype,
            breached_locally=example.locally,
        )
        self.difference = max(
            relative(t.tensor(a), mine.tensor(b))
            for number in range(INPUTS)
            for a, b in zip(t.outputs[number], mine.outputs[number], strict=True)
        )

    def causes(self) -> tuple[ParityCause, ...]:
        """What `explain` finds."""
        return explain(self.model, self.context, seconds=LIMIT)

    def causes_around(self) -> tuple[ParityCause, ...]:
        """What it finds of the layer around, which gives the layer other arguments than the truth's."""
        parent = self.context.truth.layers[self.context.layer].parent
        assert parent is not None
        around = dataclasses.replace(
            self.context, layer=parent, side_layer=parent, settings={}, breached_locally=True
        )
        return explain(self.model, around, seconds=LIMIT)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other cost more than these layers."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


Compare = Callable[..., Compared]


@pytest.fixture
def compare(tmp_path: Path) -> Compare:
    """Capture an example, or the truth of it against itself (`clean`)."""

    def compared(
        example: FaultExample,
        *,
        clean: bool = False,
        settings: SideSettings = FLOAT32,
        seed: int = 0,
    ) -> Compared:
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        return Compared(example, folder, clean=clean, settings=settings, seed=seed)

    return compared
