"""Optax state on disk: safetensors with names like `opt_state/mu/params/dense/kernel`.

The metadata contain what torch needs again: the optimizer's kind, its groups with all options, the
parameter of each position, and the torch tensors of each array.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from converters.back.safetensors_output import TensorEntry, write_safetensors
from converters.checkpoint.formats.safetensors_file import SafetensorsFile
from converters.checkpoint.reader import TensorInfo
from converters.errors import OptimizerError
from converters.kept import leaf_record, read_leaf
from converters.optimizer.kinds import Kind, recognize
from converters.optimizer.moments import Labeled

Array = np.ndarray[Any, Any]
VERSION = 1
ROOT = "opt_state/"
_FORMAT = "converters.optimizer"


@dataclass(frozen=True)
class OptimizerFile:
    """State of an optimizer for optax, and the data for the way back to torch.

    Attributes:
        source: the name of the state in messages.
        groups: torch's `param_groups`, with positions in `params`.
        names: the names of the entries of torch's state.
        positions: the position of each torch key.
        infos: the shape and dtype of each torch key's weight.
        scalars: position → torch's entries that are numbers.
        labeled: the arrays of the pytree with their labels.
        chosen: the optimizer chosen by the user; None if the state shows it.
        arrays: name without `opt_state/` → array; read on demand.
    """

    source: str
    groups: tuple[Mapping[str, Any], ...]
    names: frozenset[str]
    positions: Mapping[str, int]
    infos: Mapping[str, TensorInfo]
    scalars: Mapping[int, Mapping[str, Any]]
    labeled: tuple[Labeled, ...]
    chosen: str | None
    arrays: Mapping[str, Array]

    @property
    def kind(self) -> Kind:
        """The optimizer."""
        return recognize(self.groups, set(self.names), self.chosen)


def write_optimizer(path: Path, file: OptimizerFile, *, overwrite: bool = False) -> None:
    """Write the file, atomically.

    Raises:
        OutputError: the output exists and may not be overwritten, or the disk refuses.
    """
    record = {
        "groups": [_encode(group) for group in file.groups],
        "names": sorted(file.names),
        "positions": dict(file.positions),
        "infos": {key: [list(info.shape), info.dtype] for key, info in file.infos.items()},
        "scalars": {str(position): _encode(numbers) for position, numbers in file.scalars.items()},
        "labelled": [  # as files of earlier versions spell it
            [leaf_record(item.leaf), item.label, item.group, item.step, item.terms]
            for item in file.labeled
        ],
        "chosen": file.chosen,
    }
    entries = [
        TensorEntry(
            f"{ROOT}{name}",
            TensorInfo(array.shape, array.dtype.name),
            lambda array=array: array,  # type: ignore[misc]
        )
        for name, array in file.arrays.items()
    ]
    metadata = {"format": _FORMAT, "version": str(VERSION), "record": json.dumps(record)}
    write_safetensors(path, entries, metadata, overwrite=overwrite)


def read_optimizer_file(path: Path) -> OptimizerFile:
    """Read such a file.

    Raises:
        OptimizerError: the file is of another kind, or damaged.
        CheckpointNotFoundError, CheckpointDamagedError: it cannot be read.
    """
    from safetensors import safe_open

    file = SafetensorsFile(path)
    with safe_open(path, framework="np") as opened:
        metadata = opened.metadata() or {}
    if metadata.get("format") != _FORMAT or metadata.get("version") != str(VERSION):
        raise OptimizerError(
            f"{path} is not an optimizer state of this program's version {VERSION}",
            "convert the optimizer's state again, or save it with save_optimizer",
        )
    try:
        record = json.loads(metadata["record"])
        return OptimizerFile(
            str(path),
            tuple(_decode(group) for group in record["groups"]),
            frozenset(record["names"]),
            record["positions"],
            {
                key: TensorInfo(tuple(shape), dtype)
                for key, (shape, dtype) in record["infos"].items()
            },
            {int(position): _decode(numbers) for position, numbers in record["scalars"].items()},
            tuple(
                Labeled(read_leaf(leaf), label, group, step, terms)
                for leaf, label, group, step, terms in record["labelled"]
            ),
            record["chosen"],
            {name.removeprefix(ROOT): file.read(name) for name in file.infos},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OptimizerError(
            f"{path} is damaged ({type(error).__name__}: {error})", "convert the state again"
        ) from None


def _encode(value: Any) -> Any:
    """Encode plain values as JSON that preserves tuples and scalar tensors."""
    if isinstance(value, Mapping):
        return {"dict": [[key, _encode(item)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_encode(item) for item in value]}
    if isinstance(value, list):
        return [_encode(item) for item in value]
    if hasattr(value, "item") and hasattr(value, "dtype"):
        return {"tensor": [_values(value), str(value.dtype).removeprefix("torch.")]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise OptimizerError(
        f"an option of the optimizer is a {type(value).__name__}, which cannot be carried over",
        "keep plain numbers in param_groups",
    )


def _values(tensor: Any) -> Any:
    return tensor.tolist()


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "dict" in value:
        return {key: _decode(item) for key, item in value["dict"]}
    if "tuple" in value:
        return tuple(_decode(item) for item in value["tuple"])
    values, dtype = value["tensor"]
    return np.asarray(values, dtype)


def plain(
    state: Mapping[int, Mapping[str, Any]], tensors: Iterable[str]
) -> dict[int, dict[str, Any]]:
    """Return the entries of the state that are not moments: steps and other numbers."""
    moments = set(tensors)
    return {
        position: {
            name: value for name, value in entries.items() if name not in moments or value is None
        }
        for position, entries in state.items()
    }
