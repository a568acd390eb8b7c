"""Division of a sum over ranks: integers towards zero, all others exactly."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
CASES = [
    (lambda: torch.tensor([-3, 3, -4, 0]), [-1, 1, -2, 0]),
    (lambda: torch.tensor([-3.0, 3.0]), [-1.5, 1.5]),
    (lambda: torch.tensor([-3 + 1j, 4 - 5j]), [-1.5 + 0.5j, 2 - 2.5j]),
]


@pytest.mark.parametrize(("total", "average"), CASES, ids=["integers", "floats", "complex"])
def test_a_simulated_tpu_divides_as_nccl_does(total: Any, average: list[complex]) -> None:
    from shims._simulated_tpu.collectives import _GlooReduction

    operation = SimpleNamespace(op=lambda: torch.distributed.ReduceOp.RedOpType.AVG)
    reduction = _GlooReduction(operation, SimpleNamespace(size=lambda: 2))
    assert reduction.op == torch.distributed.ReduceOp.SUM
    assert reduction.finish(total()).tolist() == average
