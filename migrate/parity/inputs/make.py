"""Inputs from the specifications of `--inputs`: read, drawn, or both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from migrate.parity.ground.errors import InputsError
from migrate.parity.inputs.drawn import describe, draw
from migrate.parity.inputs.read import given_inputs
from migrate.parity.inputs.set import InputSet, write_inputs
from migrate.parity.inputs.spec import FORMS, Shaped, Spec, parse_inputs

Array = np.ndarray[Any, Any]


def make_inputs(specs: Sequence[str | Spec], count: int, seed: int, folder: Path) -> InputSet:
    """Create the inputs and write them into a folder.

    Args:
        specs: texts of `--inputs`, or specifications from `parse_inputs`.
        count: number of inputs to create, or the most to take from existing ones.
        seed: equal seeds give equal inputs.
        folder: folder to write into.

    Raises:
        InputsError: an unknown form, a file that cannot be read, a function that raises, inputs
            that differ in their arguments.
    """
    parsed = parse_inputs([spec for spec in specs if isinstance(spec, str)])
    parsed = (*(spec for spec in specs if not isinstance(spec, str)), *parsed)
    if not parsed or count < 1:
        raise InputsError("there are no inputs", FORMS)
    from_files, described = given_inputs(parsed, count)
    total = len(from_files) if from_files else count
    shaped = [spec for spec in parsed if isinstance(spec, Shaped)]
    drawn = [draw(shaped, number, seed) for number in range(total)]
    described += describe(shaped, total)
    inputs: list[Mapping[str, Array]] = [
        _joined(read, drawn_arguments)
        for read, drawn_arguments in zip(from_files or [{}] * total, drawn, strict=True)
    ]
    if from_files and total < count:
        described.append(f"{total} inputs: bounds on the error ratio want 8 or more")
    return write_inputs(folder, inputs, tuple(described))


def _joined(read: Mapping[str, Array], drawn: Mapping[str, Array]) -> dict[str, Array]:
    if both := sorted(read.keys() & drawn.keys()):
        raise InputsError(
            f"--inputs: {', '.join(both)} comes from a file and from a specification",
            "give each argument once",
        )
    return {**read, **drawn}
