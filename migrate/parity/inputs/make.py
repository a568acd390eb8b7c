"""Inputs of what `--inputs` was given: read, drawn, and both together."""

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
    """Make the inputs and write them into a folder.

    Args:
        specs: what `--inputs` was given, or what `parse_inputs` made of it.
        count: how many inputs to make, or to take at most of those that are there.
        seed: equal seeds give equal inputs.
        folder: where they are written.

    Raises:
        InputsError: a form that is not known, a file that cannot be read, a function that raises, inputs
            that differ in their arguments.
    """
    parsed = parse_inputs([spec for spec in specs if isinstance(spec, str)])
    parsed = (*(spec for spec in specs if not isinstance(spec, str)), *parsed)
    if not parsed or count < 1:
        raise InputsError("there are no inputs", FORMS)
    given, described = given_inputs(parsed, count)
    total = len(given) if given else count
    shaped = [spec for spec in parsed if isinstance(spec, Shaped)]
    drawn = [draw(shaped, number, seed) for number in range(total)]
    described += describe(shaped, total)
    made: list[Mapping[str, Array]] = [
        _joined(one, two) for one, two in zip(given or [{}] * total, drawn, strict=True)
    ]
    if given and total < count:
        described.append(f"{total} inputs: bounds on the error ratio want 8 or more")
    return write_inputs(folder, made, tuple(described))


def _joined(given: Mapping[str, Array], drawn: Mapping[str, Array]) -> dict[str, Array]:
    if both := sorted(given.keys() & drawn.keys()):
        raise InputsError(
            f"--inputs: {', '.join(both)} comes from a file and from a specification",
            "give each argument once",
        )
    return {**given, **drawn}
