"""Inputs of a comparison: named arrays on disk, the same for every side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from migrate.parity.ground.errors import InputsError

_FILE = "inputs.json"


@dataclass(frozen=True)
class InputSet:
    """Inputs in a folder: one safetensors file each.

    Attributes:
        folder: `000.safetensors`, `001.safetensors`, … and `inputs.json`.
        count: number of inputs.
        names: the arguments' names in order; a number as a name ("0") is a position.
        described: descriptions for the report, one a line.
    """

    folder: Path
    count: int
    names: tuple[str, ...]
    described: tuple[str, ...] = ()

    def __getitem__(self, number: int) -> dict[str, np.ndarray[Any, Any]]:
        from safetensors.numpy import load_file

        loaded = load_file(self.folder / f"{number:03d}.safetensors")
        return {name: loaded[name] for name in self.names}


def write_inputs(
    folder: Path, inputs: list[Mapping[str, np.ndarray[Any, Any]]], described: tuple[str, ...] = ()
) -> InputSet:
    """Write inputs that all have the same arguments.

    Raises:
        InputsError: there are no inputs, or they differ in their arguments.
    """
    from safetensors.numpy import save_file

    names = tuple(inputs[0]) if inputs else ()
    if not names or any(tuple(arguments) != names for arguments in inputs):
        raise InputsError(
            "the inputs have different arguments, or none", "give each input the same arguments"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for number, arguments in enumerate(inputs):
        arrays = {
            name: np.ascontiguousarray(array).reshape(array.shape)
            for name, array in arguments.items()
        }
        save_file(arrays, folder / f"{number:03d}.safetensors")
    value = {"count": len(inputs), "names": names, "described": described}
    (folder / _FILE).write_text(json.dumps(value))
    return InputSet(folder, len(inputs), names, described)


def read_inputs(folder: Path) -> InputSet:
    """Read the inputs in a folder that `write_inputs` wrote."""
    value = json.loads((folder / _FILE).read_text())
    return InputSet(folder, value["count"], tuple(value["names"]), tuple(value["described"]))


def attended(inputs: InputSet) -> dict[int, np.ndarray[Any, Any]]:
    """Input → mask of positions [batch, length] that are no padding, from the `attention_mask`."""
    if "attention_mask" not in inputs.names:
        return {}
    masks = {number: inputs[number]["attention_mask"] for number in range(inputs.count)}
    return {number: mask != 0 for number, mask in masks.items() if mask.ndim == 2}
