"""Writer of dumps (`migrate.parity.dump.dump`)."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from converters.atomic import atomic_write
from converters.checkpoint.formats.safetensors_file import SafetensorsFile
from converters.checkpoint.reader import TensorInfo
from converters.safetensors_header import safetensors_header
from migrate.parity.dump.dump import (
    DUMP_FILE,
    FORMAT,
    Call,
    Layer,
    Named,
    TensorRef,
    require_same_outputs,
)
from migrate.parity.ground.facts import RunFacts

Array = np.ndarray[Any, Any]


class DumpWriter:
    """Writer of a dump while the side runs: tensors go to disk at once and are not kept in memory."""

    def __init__(self, folder: Path, facts: RunFacts, inputs: int) -> None:
        self.folder = folder
        self._facts, self._inputs = facts, inputs
        self._layers: dict[str, Layer] = {}
        self._calls: list[Call] = []
        self._outputs: dict[int, tuple[TensorRef, ...]] = {}
        self._known: dict[Hashable, TensorRef] = {}
        self._sized: dict[str, float] = {}
        # Tokens of arrays with the same sum; and the arrays of those that are about to be written.
        self._alike: dict[Hashable, list[Hashable]] = defaultdict(list)
        self._unwritten: dict[Hashable, Array] = {}
        self._files = 0
        (folder / "tensors").mkdir(parents=True, exist_ok=True)

    def layer(self, layer: Layer) -> None:
        """Declare a layer; a second declaration is ignored."""
        self._layers.setdefault(layer.name, layer)

    def identity(self, array: Array) -> Hashable:
        """Identity for `Named`: equal for arrays with the same values, so that they are written once.

        If checksums are equal, the values are compared: nothing depends on a checksum alone.
        """
        alike = self._alike[array.shape, array.dtype.name, _sum(array)]
        values = _bytes(_storable(array)) if alike else None
        for known in alike:
            if np.array_equal(self._values(known), values):  # type: ignore[arg-type]
                return known
        new = object()
        alike.append(new)
        self._unwritten[new] = array
        return new

    def given(
        self,
        layer: str,
        number: int,
        input: int,  # noqa: A002 (the field's word)
        arguments: Sequence[Named],
    ) -> tuple[TensorRef, ...]:
        """Write the arguments of a call before it runs, because it may overwrite them."""
        del layer, number, input
        return self._write(arguments)

    def call(
        self,
        layer: str,
        number: int,
        input: int,  # noqa: A002 (the field's word)
        order: int,
        arguments: tuple[TensorRef, ...],
        outputs: Sequence[Named],
    ) -> None:
        """Write a call of a layer when it has ended; its arguments are the references from `given`."""
        self._calls.append(Call(layer, number, input, order, arguments, self._write(outputs)))

    def outputs(self, input: int, tensors: Sequence[Named]) -> None:  # noqa: A002
        """Write the model's outputs for an input, from a run *without* hooks.

        Raises:
            ParityError: the structure of the outputs differs from another input's.
        """
        self._outputs[input] = self._write(tensors)
        require_same_outputs(self._facts.target, self._outputs)

    def note(self, text: str, size: float | None = None) -> None:
        """Add a note to the facts, once; of a text with `{size}` the largest size counts."""
        if size is not None:
            self._sized[text] = max(size, self._sized.get(text, 0.0))
        elif text not in self._facts.notes:
            notes = (*self._facts.notes, text)
            self._facts = dataclasses.replace(self._facts, notes=notes)

    def close(self) -> None:
        """Complete the dump; called by the owner of the writer when the runner has captured."""
        value = {
            "format": FORMAT,
            "facts": self._facts,
            "sized": self._sized,
            "inputs": self._inputs,
            "layers": list(self._layers.values()),
            "calls": self._calls,
            "outputs": self._outputs,
        }
        with atomic_write(self.folder / DUMP_FILE, overwrite=True) as file:
            file.write(json.dumps(value, default=vars).encode())

    def _values(self, known: Hashable) -> Array:
        """Values of an array that `identity` has seen, as bytes."""
        if known in self._unwritten:
            return _bytes(_storable(self._unwritten[known]))
        ref = self._known[known]
        return _bytes(SafetensorsFile(self._path(ref.file)).read(ref.key))

    def _write(self, tensors: Sequence[Named]) -> tuple[TensorRef, ...]:
        name = f"{self._files:06d}"
        new: dict[str, Array] = {}
        refs = []
        for tensor in tensors:
            known = self._known.get(tensor.identity) if tensor.identity is not None else None
            if known is not None:
                refs.append(dataclasses.replace(known, path=tensor.path))
                continue
            key = str(len(new))
            new[key] = _storable(tensor.array)
            ref = TensorRef(tensor.path, name, key, tensor.array.shape, tensor.array.dtype.name)
            refs.append(ref)
            if tensor.identity is not None:
                self._known[tensor.identity] = ref
        if new:
            _overwrite(self._path(name), new)
            self._files += 1
        self._unwritten.clear()
        return tuple(refs)

    def _path(self, file: str) -> Path:
        return self.folder / "tensors" / f"{file}.safetensors"


def _overwrite(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write a file into the pages of the existing file, if there is one (`Dump.forget_layers`).

    The safetensors library would copy all tensors and create a new file.
    """
    infos = {key: TensorInfo(array.shape, array.dtype.name) for key, array in arrays.items()}
    header, ordered = safetensors_header(infos)
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(header)
        for key in ordered:
            file.write(_bytes(arrays[key]).data)
        file.truncate()


def _sum(array: Array) -> int:
    flat = _bytes(np.ascontiguousarray(array))
    return int(flat[: flat.size // 8 * 8].view(np.uint64).sum(dtype=np.uint64))


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _storable(array: Array) -> Array:
    """Convert the array exactly to a dtype that safetensors has for numpy."""
    if array.dtype.name in ("bfloat16", "float16") or array.dtype.name.startswith("float8"):
        array = array.astype(np.float32)
    return np.ascontiguousarray(array).reshape(array.shape)
