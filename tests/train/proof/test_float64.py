"""Differences in float32 that a comparison in float64 decides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from migrate.train.proof.program import compared_in_float64, decided, differs_in_float32
from migrate.train.results import TrainComparison
from migrate.train.watch.wide import WideRun

ROUNDED = TrainComparison("gradients", False, 2e-3, 1e-5, "3 parameters; largest: w")
SAME = TrainComparison("optimizer", True, 0.0, 1e-5)


@pytest.mark.parametrize(
    ("others", "could_be"),
    [
        ((), True),
        ((TrainComparison("weights", False, 0.4, 1e-5),), True),  # a bias that starts from zero
        ((TrainComparison("losses", False, 0.4, 1e-5),), False),
        ((TrainComparison("optimizer", False, 1e-3, 1e-5),), False),
        ((TrainComparison("losses", False, float("inf"), 1e-5),), False),
    ],
)
def test_what_differs_by_little_could_be_rounding(
    others: tuple[TrainComparison, ...], could_be: bool
) -> None:
    assert differs_in_float32([ROUNDED, SAME, *others]) is could_be
    assert not differs_in_float32([SAME])


def test_float64_decides_what_differs_in_float32() -> None:
    exact = TrainComparison("gradients", True, 1e-13, 1e-5, "3 parameters; largest: w")
    judged = decided(ROUNDED, exact)
    assert judged.same
    assert (judged.worst, judged.limit) == (1e-13, 1e-5)  # the limit is that of float32
    assert "in float32 rounding is 2.0e-03" in judged.what
    faulty = decided(ROUNDED, TrainComparison("gradients", False, 2e-3, 1e-5, "largest: w"))
    assert not faulty.same
    assert "in float64 2.0e-03" in faulty.what
    assert decided(SAME, exact) is SAME


def test_a_script_that_has_no_run_in_float64_differs(tmp_path: Path) -> None:
    judged = compared_in_float64([ROUNDED, SAME], tmp_path, "it fails", tmp_path, 1.0)
    assert [c.same for c in judged] == [False, True]
    assert judged[0].what.endswith("not compared in float64: it fails")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[WideRun]:
    """A run whose changes of torch end with the test; in a script they end with the process."""
    parallel = torch.nn.parallel.DistributedDataParallel
    monkeypatch.setattr(parallel, "forward", parallel.forward)
    run = WideRun()
    yield run
    run.end()
    mode = _get_current_dispatch_mode()
    assert mode is not None
    mode.__exit__(None, None, None)


def test_a_run_in_float64_keeps_batches_and_16_bits(run: WideRun) -> None:
    layer, half = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).bfloat16()
    batch = torch.ones(1, 2)
    for _ in range(2):  # two updates
        run.begin([layer, half])
        loss = torch.relu(layer(batch)).sum() + 0.1
        loss.backward()
        run.end()
        assert loss.dtype == torch.float64
        assert layer.weight.grad is not None
        assert layer.weight.grad.dtype == torch.float64
    assert half.weight.dtype == torch.bfloat16
    assert torch.rand(1).dtype == torch.float32
    assert layer(torch.rand(1, 2)).dtype == torch.float64  # an evaluation between two updates


def test_a_wrapper_of_one_rank_computes_in_float64(tmp_path: Path, run: WideRun) -> None:
    store = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        run.begin([model])
        model(torch.ones(1, 2)).sum().backward()
        assert model.module.weight.grad.dtype == torch.float64
    finally:
        torch.distributed.destroy_process_group()
