"""A dump that was written, measured afterwards: that of the first input, by which layers are aligned."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from migrate.parity.dump.dump import Dump, Named, TensorRef
from migrate.parity.dump.reference import Reference
from migrate.parity.judge.measured import MeasuringWriter

Array = np.ndarray[Any, Any]


def measure_dump(
    dump: Dump, folder: Path, reference: Reference, padding: Mapping[int, Array]
) -> None:
    """Make the dump that the side would have measured where it ran.

    Args:
        dump: of the side as it runs.
        folder: of the new one.
        reference, padding: as of `MeasuringWriter`.
    """
    facts = dataclasses.replace(dump.facts, notes=dump.said)
    writer = MeasuringWriter(folder, facts, dump.inputs, reference, padding, fed=False)
    for text, size in dump.sized.items():
        writer.note(text, size)
    for layer in dump.layers.values():
        writer.layer(layer)
    for call in dump.calls:
        at = call.layer, call.number, call.input
        given = writer.given(*at, [_unread(ref) for ref in call.arguments])
        writer.call(*at, call.order, given, [_read(dump, ref) for ref in call.outputs])
    for number, refs in dump.outputs.items():
        writer.outputs(number, [_read(dump, ref) for ref in refs])
    writer.close()


def _read(dump: Dump, ref: TensorRef) -> Named:
    # In the dtype that it had: a dump holds bfloat16 as float32, exactly.
    values = dump.tensor(ref).astype(_dtype(ref), copy=False)
    return Named(ref.path, values, (ref.file, ref.key))


def _unread(ref: TensorRef) -> Named:
    """What a layer is given says nothing of it where its inputs are its own: the values do not count."""
    return Named(
        ref.path, np.broadcast_to(np.zeros((), _dtype(ref)), ref.shape), (ref.file, ref.key)
    )


def _dtype(ref: TensorRef) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, ref.dtype, ref.dtype))
