"""Faults to plant, in order to test the probe: `migrate doctor --devices --plant 3:flaky`.

They change what comes back from a chip, before anything is looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
# Of what came back from a chip: its id, the program, the repeat, the array.
Plant = Callable[[int, str, int, Array], Array]
KINDS = ("bit", "flaky", "nan", "hang", "lost", "everywhere")


def plant(fault: str) -> Plant | None:
    """The fault "ID:KIND", ID being a chip's, or None for "".

    bit: one bit of every matmul is wrong, always; flaky: in the second repeat only; nan: a NaN in the
    softmax; hang: it never answers; lost: the all-reduces of all chips lack its part; everywhere: all
    chips are wrong in the same way (the chip says nothing).

    Raises:
        ValueError: it is not of that form.
    """
    if not fault:
        return None
    number, _, kind = fault.partition(":")
    if not number.isdigit() or kind not in KINDS:
        raise ValueError(f"{fault}: write ID:KIND, the kind one of {', '.join(KINDS)}")
    chip = int(number)

    def planted(id: int, program: str, repeat: int, array: Array) -> Array:  # noqa: A002
        return _changed(kind, id == chip, program, repeat, array)

    return planted


def _changed(kind: str, here: bool, program: str, repeat: int, array: Array) -> Array:
    matmul = program.startswith("matmul")
    if kind == "everywhere" and matmul:
        return array + array.dtype.type(1)
    if not here:
        return array
    if matmul and (kind == "bit" or (kind == "flaky" and repeat == 1)):
        return _flipped(array)
    if kind == "nan" and program.startswith("softmax"):
        changed = array.copy()
        changed.flat[7] = np.nan
        return changed
    while kind == "hang":
        time.sleep(1)
    return array


def _flipped(array: Array) -> Array:
    changed = np.ascontiguousarray(array).copy()
    bits = changed.view(f"u{changed.dtype.itemsize}")
    bits.flat[bits.size // 2] ^= 1
    return changed


def lost_chip(fault: str) -> int | None:
    """The chip whose part the all-reduces are to lack."""
    number, _, kind = fault.partition(":")
    return int(number) if kind == "lost" else None
