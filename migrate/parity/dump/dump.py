"""A dump: what one side computed on one set of inputs, layer by layer, on disk.

    FOLDER/dump.json                 written last; without it the dump is not complete
    FOLDER/tensors/000017.safetensors   the tensors of one call, or of one input's outputs

Tensors are kept as float32, float64, integers or bools: bfloat16 and float16 become float32, which is
exact, and `TensorRef.dtype` tells what they were. A tensor that several calls share (the output of one,
the input of the next) is written once.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from converters.checkpoint.formats.safetensors_file import SafetensorsFile
from converters.errors import ConversionError
from migrate.parity.ground.errors import DumpError, ParityError
from migrate.parity.ground.facts import RunFacts
from migrate.parity.ground.last_used import LastUsed

FORMAT = 1
DUMP_FILE = "dump.json"
_RECENT = 4


@dataclass(frozen=True)
class TensorRef:
    """Reference to a tensor of a dump.

    Attributes:
        path: path among the arguments or outputs: a position or a name, then keys, joined by dots
            ("0", "hidden_states", "1.cache"); "" for an output that is a single tensor.
        file, key: its file, and its key in the file.
        shape: its shape.
        dtype: its dtype on the side, by numpy's name ("bfloat16").
    """

    path: str
    file: str
    key: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Layer:
    """Module of the model.

    Attributes:
        name: its path ("encoder.layer.0.output.dense"; Flax paths with dots too); "" is the model itself.
        kind: its class ("LayerNorm").
        weights: names of the parameters and buffers that it holds itself, as the side names them:
            keys of the state dict, or `/`-joined paths of the pytree with the collection first.
        settings: the configuration that decides what it computes: plain values by the framework's
            own names ({"eps": 1e-05, "approximate": "none"}).
        defined: `file.py:line` of its forward pass.
        called: `file.py:line` of its first call; "" for the model itself.
        parent: the layer in whose forward pass it is called; None for the model itself.
        stacks: names of its weights that are stacked → the weights of the layers, one for each call.
    """

    name: str
    kind: str
    weights: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    defined: str = ""
    called: str = ""
    parent: str | None = None
    stacks: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Call:
    """Call of a layer.

    Attributes:
        layer: the layer's name.
        number: 0 for the first call of this layer on this input, 1 for the second.
        input: number of the input.
        order: position among the calls of this input in which they *ended*.
        arguments, outputs: their tensors.
    """

    layer: str
    number: int
    input: int
    order: int
    arguments: tuple[TensorRef, ...]
    outputs: tuple[TensorRef, ...]


@dataclass(frozen=True)
class Named:
    """Tensor to be written into a dump.

    Attributes:
        path: path as in `TensorRef`.
        array: its values, as numpy (bfloat16 of ml_dtypes is accepted).
        identity: equal if two are the same tensor with the same values (`DumpWriter.identity`); None
            if unknown.
    """

    path: str
    array: np.ndarray[Any, Any]
    identity: Hashable | None = None


class Dump:
    """Complete dump. Tensors are read on demand.

    Attributes:
        folder: folder of the dump.
        facts: facts about the run, with all notes.
        said, sized: its notes without and with a size (`DumpWriter.note`).
        inputs: number of inputs; the dump need not hold all of them.
        layers, calls: layers and calls of the model.
        outputs: input → the model's outputs.

    Raises:
        DumpError: the folder holds no complete dump.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            value = json.loads((folder / DUMP_FILE).read_text())
        except FileNotFoundError:
            raise DumpError(
                f"{folder}: not a complete dump: {DUMP_FILE} is missing",
                "record it again with --keep",
            ) from None
        except (OSError, ValueError) as error:
            raise DumpError(
                f"{folder / DUMP_FILE}: {error}", "record it again with --keep"
            ) from None
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise DumpError(f"{folder / DUMP_FILE}: not of format {FORMAT}", "record it again")
        try:
            self._take(value)
        except (KeyError, TypeError, AttributeError) as error:
            raise DumpError(
                f"{folder / DUMP_FILE}: damaged ({error!r})", "record it again"
            ) from None

    def _take(self, value: Mapping[str, Any]) -> None:
        facts = value["facts"]
        self.said = tuple(facts["notes"])
        self.sized = {text: float(size) for text, size in value.get("sized", {}).items()}
        self.facts = RunFacts(**facts | {"notes": self.notes})
        self.inputs = int(value["inputs"])
        self.layers = {
            layer["name"]: Layer(**layer | {"weights": tuple(layer["weights"])})
            for layer in value["layers"]
        }
        self.calls = tuple(
            Call(**call | {part: _refs(call[part]) for part in ("arguments", "outputs")})
            for call in value["calls"]
        )
        self.outputs = {int(number): _refs(refs) for number, refs in value["outputs"].items()}

    @property
    def notes(self) -> tuple[str, ...]:
        """All notes, one a line."""
        return *self.said, *(text.format(size=f"{size:.1e}") for text, size in self.sized.items())

    def forget_layers(self, into: Path | None = None) -> None:
        """Delete the tensors of layers, but keep the model's outputs.

        Args:
            into: folder of the dump to be written next. It is written over these files, because new
                memory pages for as many bytes cost several times as much.
        """
        kept = {ref.file for refs in self.outputs.values() for ref in refs}
        if into is not None:
            (into / "tensors").mkdir(parents=True)
        for file in (self.folder / "tensors").iterdir():
            if file.stem in kept:
                continue
            if into is None:
                file.unlink()
            else:
                file.rename(into / "tensors" / file.name)

    def of(self, layer: str) -> Iterator[Call]:
        """Yield the calls of a layer, input by input."""
        return (call for call in self.calls if call.layer == layer)

    def tensor(self, ref: TensorRef) -> np.ndarray[Any, Any]:
        """Return the values of a tensor: a read-only view of the file.

        Raises:
            DumpError: its file is missing or damaged.
        """
        path = self.folder / "tensors" / f"{ref.file}.safetensors"
        try:
            return SafetensorsFile(path).read(ref.key)
        except ConversionError as error:
            raise DumpError(error.what, "record it again with --keep") from None
        except KeyError:
            raise DumpError(
                f"{path}: has no tensor {ref.key}", "record it again with --keep"
            ) from None


def require_same_outputs(target: str, outputs: Mapping[int, Sequence[TensorRef]]) -> None:
    """Require that a model has the same outputs for all inputs.

    Raises:
        ParityError: the outputs differ in structure.
    """
    paths = {number: [ref.path for ref in refs] for number, refs in outputs.items()}
    first = min(paths, default=0)
    for number, output_paths in sorted(paths.items()):
        if output_paths != paths[first]:
            raise ParityError(
                f"{target}: input {number} returns other outputs ({', '.join(output_paths)}) than input "
                f"{first} ({', '.join(paths[first])})",
                "use inputs for which the model returns the same structure",
            )


class RecentDump(Dump):
    """Dump that holds the tensors read last, because a layer's output is the next layer's argument."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._read: LastUsed[np.ndarray[Any, Any]] = LastUsed(_RECENT)

    def tensor(self, ref: TensorRef) -> np.ndarray[Any, Any]:
        """See `Dump`."""
        read = super().tensor
        return self._read.get((ref.file, ref.key), lambda: read(ref))


def _refs(values: Sequence[Mapping[str, Any]]) -> tuple[TensorRef, ...]:
    return tuple(
        TensorRef(
            reference["path"],
            reference["file"],
            reference["key"],
            tuple(reference["shape"]),
            reference["dtype"],
        )
        for reference in values
    )
