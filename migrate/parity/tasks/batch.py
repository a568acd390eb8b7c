"""Compare a side with itself: each input's rows one at a time, and all together.

On a TPU a matmul of one row (M = 1, as of N = 1 or K = 1) is compiled to multiplications and additions, not
for the matrix unit, so nothing in it is rounded to bfloat16 (jax#16349). With one bf16 pass batch 1 is
therefore nearer to the truth than batch n, and the two differ by the whole error of the pass.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from migrate.parity.dump.dump import Dump
from migrate.parity.ground.results import ParityCheck, Section
from migrate.parity.judge.metrics import Measurement
from migrate.parity.sides import protocol
from migrate.parity.tasks.outputs import floating_outputs, output
from migrate.parity.tasks.party import Parties, Party

_VPU = (
    "precision {}: a matmul of one row is not done by the matrix unit and not rounded (jax#16349), so that "
    "batch 1 may be nearer to the truth"
)


def compare_batches(parties: Parties) -> Section:
    """Run each side's inputs row by row, and compare with all rows at a time.

    A side whose inputs have a single row has nothing to compare; a note says so.
    """
    checks: list[ParityCheck] = []
    notes: list[str] = []
    rows = _rows(parties)
    if rows < 2:
        return Section("batch", (), notes=("the inputs have one row: batch 1 is the whole batch",))
    for party in parties.sides:
        folder = parties.work / "batch" / party.name
        settings = dataclasses.replace(party.settings, batch=1)
        party.side.ask(protocol.Capture(settings, parties.inputs, folder, layers=False))
        checks += _compare(parties, party, Dump(folder), rows)
        if settings.precision != "highest" and settings.dtype == "float32":
            notes.append(f"{party.name}: {_VPU.format(settings.precision)}")
    return Section("batch", tuple(checks), notes=tuple(notes))


def _rows(parties: Parties) -> int:
    """Largest number of rows of an input."""
    return max(
        (
            array.shape[0]
            for number in range(parties.inputs.count)
            for array in parties.inputs[number].values()
            if array.ndim
        ),
        default=0,
    )


def _compare(parties: Parties, party: Party, single: Dump, rows: int) -> Iterator[ParityCheck]:
    # Each of the two may be as far from the truth as the limit allows, with errors of its own.
    limit = math.sqrt(2) * parties.outputs_limit
    for path in floating_outputs(party.dump):
        dtype = party.dump.outputs[0][0].dtype
        between = Measurement(dtype)
        for number in range(parties.inputs.count):
            whole, alone = output(party.dump, number, path), output(single, number, path)
            if whole.shape != alone.shape:
                between.add(number, np.zeros(1), np.full(1, np.inf))
            else:
                between.add(number, whole, alone)
        errors = between.errors()
        yield ParityCheck(
            f"{party.name}: batch 1 against batch {rows}{f', {path}' if path else ''}",
            errors.relative_l2 if party.name == "A" else None,
            errors.relative_l2 if party.name == "B" else None,
            limit,
            errors.relative_l2 <= limit,
            "two independent errors within the limit of the outputs",
            note=f"{errors.not_finite} not finite" if errors.not_finite else "",
        )
