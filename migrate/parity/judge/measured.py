"""Dumps whose tensors were measured against the truth's when they were computed, and not kept.

    FOLDER/dump.json        as in a dump; of the tensors it has only the model's outputs
    FOLDER/measured.json    the sums of each judged tensor

Writing and reading the tensors of all layers costs several times as much as computing them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from migrate.parity.dump.dump import Call, Dump, Named, TensorRef
from migrate.parity.dump.joined import JoinedDump
from migrate.parity.dump.reference import AlignedTruth
from migrate.parity.dump.writer import DumpWriter
from migrate.parity.ground.errors import DumpError
from migrate.parity.ground.facts import RunFacts
from migrate.parity.ground.kinds import operation
from migrate.parity.judge.metrics import Sums
from migrate.parity.judge.probes import Calls, Partners, TensorProbe
from migrate.parity.judge.sums import Key, in_ulps, key_of, sums_of

_FILE = "measured.json"
Array = np.ndarray[Any, Any]


class MeasuringWriter(DumpWriter):
    """Writer that measures each tensor when it is passed, and keeps only sums.

    Args:
        folder, facts, inputs: as in `DumpWriter`.
        reference: the truth's dump, and the alignment of this side with it.
        padding: input → positions [batch, length] that are no padding.
        fed: whether the layers are fed with the truth's inputs: then their arguments count too.
    """

    def __init__(
        self,
        folder: Path,
        facts: RunFacts,
        inputs: int,
        reference: AlignedTruth,
        padding: Mapping[int, Array],
        *,
        fed: bool,
    ) -> None:
        super().__init__(folder, facts, inputs)
        self._truth, self._padding, self._fed = reference.dump, padding, fed
        calls = Calls(reference.dump)
        self._partners = Partners(calls, reference.alignment)
        self._passing: dict[Hashable, TensorRef] = {}
        self._count = 0
        self._sums: dict[Key, Sums | None] = {}

    def identity(self, array: Array) -> Hashable:
        """See `DumpWriter`; every tensor is new, because none is written."""
        del array
        return object()

    def given(
        self,
        layer: str,
        number: int,
        input: int,  # noqa: A002
        arguments: Sequence[Named],
    ) -> tuple[TensorRef, ...]:
        """See `DumpWriter`."""
        refs = self._refs(arguments)
        partner = self._partners.of(layer, number, input) if self._fed else None
        if partner is not None:
            arrays = _arrays(refs, arguments)
            for owner, probe in self._partners.arguments(*partner, refs):
                self._measure(owner, probe, arrays)
        return refs

    def call(
        self,
        layer: str,
        number: int,
        input: int,  # noqa: A002
        order: int,
        arguments: tuple[TensorRef, ...],
        outputs: Sequence[Named],
    ) -> None:
        """See `DumpWriter`."""
        refs = self._refs(outputs)
        self._calls.append(Call(layer, number, input, order, arguments, refs))
        partner = self._partners.of(layer, number, input)
        if partner is not None:
            arrays = _arrays(refs, outputs)
            for probe in self._partners.outputs(*partner, refs):
                self._measure(partner[1].layer, probe, arrays)

    def close(self) -> None:
        """See `DumpWriter`."""
        rows = [
            (*key, None if sums is None else _figures(sums)) for key, sums in self._sums.items()
        ]
        (self.folder / _FILE).write_text(json.dumps(rows))
        super().close()

    def _refs(self, tensors: Sequence[Named]) -> tuple[TensorRef, ...]:
        """References as if the tensors were written, each in a file of its own that does not exist."""
        refs = []
        for tensor in tensors:
            known = self._passing.get(tensor.identity) if tensor.identity is not None else None
            if known is None:
                shape, dtype = tensor.array.shape, tensor.array.dtype.name
                known = TensorRef(tensor.path, f"-{self._count}", "0", shape, dtype)
                self._count += 1
                if tensor.identity is not None:
                    self._passing[tensor.identity] = known
            refs.append(dataclasses.replace(known, path=tensor.path))
        return tuple(refs)

    def _measure(self, owner: str, probe: TensorProbe, arrays: Mapping[str, Array]) -> None:
        kind = operation(self._truth.layers[owner].kind)
        ulps = in_ulps(probe, kind, local=self._fed)
        key = key_of(probe, ulps=ulps)
        if key not in self._sums:
            truth, kept = self._truth.tensor(probe.truth), self._padding.get(probe.input)
            mine = arrays[probe.mine.path]
            self._sums[key] = sums_of(probe, truth, mine, kept, ulps=ulps)


def measured_of(dump: Dump) -> dict[Key, Sums | None]:
    """Return the measurements of a dump; none if its tensors are kept.

    Raises:
        DumpError: a file is damaged.
    """
    if not isinstance(dump, JoinedDump):
        return _read(dump.folder / _FILE)
    sums_by_key = {}
    for number, part in enumerate(dump.parts):
        for key, sums in measured_of(part).items():
            truth, mine = ((f"{number}/{file}", name) for file, name in (key.truth, key.mine))
            sums_by_key[key._replace(truth=truth, mine=mine)] = sums
    return sums_by_key


def _read(path: Path) -> dict[Key, Sums | None]:
    if not path.exists():
        return {}
    try:
        return {
            _key(row[:-1]): None if row[-1] is None else Sums(*row[-1])
            for row in json.loads(path.read_text())
        }
    except (ValueError, TypeError, IndexError) as error:
        raise DumpError(f"{path}: damaged ({error!r})", "run the comparison again") from None


def _arrays(refs: Sequence[TensorRef], tensors: Sequence[Named]) -> dict[str, Array]:
    return {ref.path: tensor.array for ref, tensor in zip(refs, tensors, strict=True)}


def _figures(sums: Sums) -> list[float]:
    """All sums but the histogram, which is not needed here."""
    return [getattr(sums, field.name) for field in dataclasses.fields(sums)][:-1]


def _key(row: list[Any]) -> Key:
    number, truth, mine, *lie, ulps = row
    axes, shape, split = (None if part is None else tuple(part) for part in lie)
    return Key(number, tuple(truth), tuple(mine), axes, shape, split, ulps)


def measure_dump(
    dump: Dump, folder: Path, reference: AlignedTruth, padding: Mapping[int, Array]
) -> None:
    """Write the dump that the side would have measured during its run.

    Args:
        dump: dump of an ordinary run of the side.
        folder: folder of the new dump.
        reference, padding: as in `MeasuringWriter`.
    """
    facts = dataclasses.replace(dump.facts, notes=dump.said)
    writer = MeasuringWriter(folder, facts, dump.inputs, reference, padding, fed=False)
    for text, size in dump.sized.items():
        writer.note(text, size)
    for layer in dump.layers.values():
        writer.layer(layer)
    for call in dump.calls:
        at = call.layer, call.number, call.input
        arguments = writer.given(*at, [_unread(ref) for ref in call.arguments])
        writer.call(*at, call.order, arguments, [_named(dump, ref) for ref in call.outputs])
    for number, refs in dump.outputs.items():
        writer.outputs(number, [_named(dump, ref) for ref in refs])
    writer.close()


def _named(dump: Dump, ref: TensorRef) -> Named:
    # In its original dtype: a dump holds bfloat16 as float32, exactly.
    values = dump.tensor(ref).astype(_dtype(ref), copy=False)
    return Named(ref.path, values, (ref.file, ref.key))


def _unread(ref: TensorRef) -> Named:
    """Argument without values: in a run on the side's own inputs, a layer's arguments do not count."""
    return Named(
        ref.path, np.broadcast_to(np.zeros((), _dtype(ref)), ref.shape), (ref.file, ref.key)
    )


def _dtype(ref: TensorRef) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, ref.dtype, ref.dtype))
