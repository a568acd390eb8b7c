"""Load two models that a user names; the second gets its number of classes from the first."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

from migrate.parity.dump.dump import Dump
from migrate.parity.ground.errors import ArgumentsError
from migrate.parity.ground.options import ParityOptions
from migrate.parity.ground.requests import TORCH
from migrate.parity.run.prepare import inputs_for
from migrate.parity.sides import protocol
from migrate.parity.sides.side import ComparedSide
from migrate.parity.sides.start import started
from migrate.parity.sides.target import Target

# Parameter names for the number of outputs in model factories.
_CLASSES = ("n_classes", "num_classes", "classes", "num_labels", "n_outputs", "num_outputs")


def load_both(
    a: Target, b: Target, options: ParityOptions, work: Path, stack: contextlib.ExitStack
) -> tuple[ComparedSide, ComparedSide, tuple[str, ...]]:
    """Return the two sides, started, and notes; the stack ends them.

    Raises:
        ParityError: a model cannot be loaded.
    """
    try:
        first, second = started({"A": (a, options.a), "B": (b, options.b)}, options, work, stack)
        return first, second, ()
    except ArgumentsError as error:
        (name, *others) = error.names
        if others or name not in _CLASSES:
            raise
        (first,) = started({"A": (a, options.a)}, options, work, stack)
        classes = _outputs(first, options, work)
        if classes is None:
            raise
    spec = f"{b.spec}({name}={classes})"
    counted = dataclasses.replace(b, spec=spec, shown=spec)
    (second,) = started({"B": (counted, options.b)}, options, work, stack)
    said = f"side B: {spec}, as A gives so many outputs: write another number where it is not so"
    return first, second, (said,)


def _outputs(side: ComparedSide, options: ParityOptions, work: Path) -> int | None:
    """Size of the last axis of a torch model's output; None: another kind of model, or several outputs."""
    if side.kind not in TORCH:
        return None
    inputs = inputs_for(side, side, options, work / "inputs-for-classes")
    side.ask(protocol.Prepare(options.a.settings, inputs))
    folder = work / "outputs-for-classes"
    side.ask(protocol.Capture(options.a.settings, inputs, folder, layers=False, numbers=(0,)))
    sides = {ref.shape[-1:] for ref in Dump(folder).outputs[0]}
    return next(iter(sides))[0] if len(sides) == 1 and sides != {()} else None
