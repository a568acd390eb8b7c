"""Shapes from `--inputs`, without values."""

from __future__ import annotations

import tempfile
from pathlib import Path

from migrate.fit.errors import FitError
from migrate.fit.lowered.step import Wanted
from migrate.parity.inputs.make import make_inputs
from migrate.parity.inputs.spec import Shaped, parse_inputs

Shapes = dict[str, tuple[tuple[int, ...], str]]


def shapes_of(wanted: Wanted) -> Shapes:
    """Argument → shape and dtype, as one replica takes it.

    Raises:
        FitError: none were given.
        InputsError: they cannot be read.
    """
    specs = parse_inputs(wanted.inputs, drawn=False)
    if not specs:
        raise FitError(
            f"{wanted.target}: input shapes are unknown",
            "pass them: --inputs 'x=float32[8,16]'",
        )
    shapes = {spec.name: (spec.shape, spec.dtype) for spec in specs if isinstance(spec, Shaped)}
    others = [spec for spec in specs if not isinstance(spec, Shaped)]
    if others:
        with tempfile.TemporaryDirectory() as folder:
            for name, array in make_inputs(others, 1, 0, Path(folder))[0].items():
                shapes[name] = (array.shape, str(array.dtype))
    return shapes
