"""Join dumps of different inputs into one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from migrate.parity.dump.dump import Call, Dump, TensorRef, require_same_outputs


class JoinedDump(Dump):
    """Several dumps of a model with the same settings, each of other inputs.

    Attributes:
        parts: the dumps; a tensor's file is `NUMBER/FILE`, with the number of its part in front.

    Raises:
        ParityError: the structure of the model's outputs differs between the dumps.
    """

    def __init__(self, parts: Sequence[Dump]) -> None:
        first = parts[0]
        self.parts = tuple(parts)
        self.folder = first.folder.parent
        self.inputs = first.inputs
        self.layers = {}
        for part in parts:
            self.layers = part.layers | self.layers
        self.calls = tuple(
            _numbered(call, number) for number, part in enumerate(parts) for call in part.calls
        )
        self.outputs = {
            at: in_part(refs, number)
            for number, part in enumerate(parts)
            for at, refs in part.outputs.items()
        }
        self.said = tuple(dict.fromkeys(note for part in parts for note in part.said))
        sizes = {text: 0.0 for part in parts for text in part.sized}
        self.sized = {text: max(part.sized.get(text, 0.0) for part in parts) for text in sizes}
        self.facts = dataclasses.replace(first.facts, notes=self.notes)
        require_same_outputs(self.facts.target, self.outputs)

    def tensor(self, ref: TensorRef) -> np.ndarray[Any, Any]:
        """See `Dump`."""
        number, _, file = ref.file.partition("/")
        return self.parts[int(number)].tensor(dataclasses.replace(ref, file=file))


def joined(parts: Sequence[Dump]) -> Dump:
    """Join the parts; a single part is returned as it is."""
    return parts[0] if len(parts) == 1 else JoinedDump(parts)


def in_part(refs: tuple[TensorRef, ...], number: int) -> tuple[TensorRef, ...]:
    """References to tensors of a part, as the joined dump names them."""
    return tuple(dataclasses.replace(ref, file=f"{number}/{ref.file}") for ref in refs)


def _numbered(call: Call, number: int) -> Call:
    arguments, outputs = in_part(call.arguments, number), in_part(call.outputs, number)
    return dataclasses.replace(call, arguments=arguments, outputs=outputs)
