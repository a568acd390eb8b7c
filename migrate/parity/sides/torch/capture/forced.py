"""Each torch layer fed with the truth's inputs, its caller with the truth's outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from migrate.parity.dump.dump import Call, TensorRef
from migrate.parity.ground.alignment import Pair, TensorPair
from migrate.parity.judge.probes import lie_as
from migrate.parity.sides.runner import Forced
from migrate.parity.sides.torch.capture.tree import to_tensor

# What a layer gives the next ones take: attention and its mask, three projections of one input.
_RECENT = 4


class Forcing:
    """What takes the place of arguments and outputs; tensors of the truth are read when they are needed.

    Attributes:
        notes: layers where the truth's tensors did not fit; they ran, and their callers went on, with what
            they had.
    """

    def __init__(self, forced: Forced) -> None:
        self._truth = forced.dump
        self._alignment = forced.alignment
        self._calls = {(call.layer, call.number, call.input): call for call in self._truth.calls}
        self._recent: dict[Any, tuple[Any, int]] = {}
        self.notes: list[str] = []

    def feed(
        self, layer: str, number: int, at: int, arguments: Sequence[tuple[str, Any]]
    ) -> dict[str, Any]:
        """Path → the truth's tensor, for the arguments that have a partner; none if one does not fit."""
        found = self._found(layer, number, at)
        if found is None:
            return {}
        pair, call = found
        return self._tensors(layer, pair.arguments, call.arguments, dict(arguments))

    def answer(
        self, layer: str, number: int, at: int, outputs: Sequence[tuple[str, Any]]
    ) -> dict[str, Any]:
        """The same for outputs."""
        found = self._found(layer, number, at)
        if found is None:
            return {}
        pair, call = found
        return self._tensors(layer, pair.outputs, call.outputs, dict(outputs))

    def _found(self, layer: str, number: int, at: int) -> tuple[Pair, Call] | None:
        found = self._alignment.pair(layer, number)
        if found is None:
            return None
        pair, truth_number = found
        call = self._calls.get((pair.truth, truth_number, at))
        return None if call is None else (pair, call)

    def _tensors(
        self,
        layer: str,
        pairs: tuple[TensorPair, ...],
        refs: tuple[TensorRef, ...],
        mine: Mapping[str, Any],
    ) -> dict[str, Any]:
        by_path = {ref.path: ref for ref in refs}
        new: dict[str, Any] = {}
        # What is one tensor to the caller stays one: attention looks whether its query is its key.
        same: dict[Any, Any] = {}
        for pair in pairs:
            ref, like = by_path.get(pair.truth), mine.get(pair.mine)
            if ref is None or like is None:
                continue
            try:
                new[pair.mine] = self._tensor(pair, ref, like, same)
            except ValueError as error:
                self._misfit(layer, pair, str(error))
                return {}
        return new

    def _tensor(self, pair: TensorPair, ref: TensorRef, like: Any, same: dict[Any, Any]) -> Any:
        """The truth's tensor; what the caller passes on as it was given, unless something wrote into it."""
        layout = ref.file, ref.key, pair.axes, pair.shape, pair.split
        key = *layout, tuple(like.shape), like.dtype, like.device
        tensor, version = self._recent.pop(key, (None, -1))
        if tensor is None or tensor._version != version:
            tensor = self._read(pair, ref, like)
        elif tensor is not like and (id(like), key) not in same:
            # Others hold it, and may not see what this layer writes into its argument.
            same[id(like), key] = tensor.clone()
        self._recent[key] = tensor, tensor._version
        if len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]
        return same.setdefault((id(like), key), tensor)

    def _read(self, pair: TensorPair, ref: TensorRef, like: Any) -> Any:
        truth = self._truth.tensor(ref)
        lying = lie_as(pair, truth, tuple(like.shape))
        if lying is None:
            raise ValueError(f"shape {list(truth.shape)} instead of {list(like.shape)}")
        return to_tensor(lying, like)

    def _misfit(self, layer: str, pair: TensorPair, why: str) -> None:
        note = f"{layer or 'the model'}: the truth's {pair.truth or 'output'} does not fit ({why})"
        if note not in self.notes:
            self.notes.append(note)
