"""Feed a side's layers with the truth's tensors, for any framework."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from migrate.parity.dump.dump import Call, TensorRef
from migrate.parity.dump.reference import Forced
from migrate.parity.ground.alignment import Pair, TensorPair


class Forcing(ABC):
    """Replacement of arguments and outputs by the truth's tensors, which are read on demand.

    Attributes:
        notes: layers where the truth's tensors did not fit; these layers and their callers kept their own.
    """

    def __init__(self, forced: Forced) -> None:
        self._truth = forced.dump
        self._alignment = forced.alignment
        self._calls = {(call.layer, call.number, call.input): call for call in self._truth.calls}
        self.notes: list[str] = []

    def feed(
        self, layer: str, number: int, at: int, mine: Callable[[], Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return path → the truth's tensor, for arguments with a partner; empty if one does not fit.

        Args:
            layer, number, at: the call of the side's layer, and the input.
            mine: returns the layer's own arguments.
        """
        pair, call = self._paired_call(layer, number, at) or (None, None)
        if pair is None or call is None or not pair.arguments:
            return {}
        return self._tensors(layer, pair.arguments, call.arguments, mine())

    def answer(
        self, layer: str, number: int, at: int, mine: Callable[[], Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return the same for outputs, with which the caller continues."""
        pair, call = self._paired_call(layer, number, at) or (None, None)
        if pair is None or call is None or not pair.outputs:
            return {}
        return self._tensors(layer, pair.outputs, call.outputs, mine())

    @abstractmethod
    def _tensor(self, pair: TensorPair, ref: TensorRef, like: Any, same: dict[Any, Any]) -> Any:
        """Convert the truth's tensor for this side.

        Args:
            like: the tensor that it replaces.
            same: cache for all tensors of one call: one tensor of the caller stays one (attention checks
                whether its query is its key), and two stay two.

        Raises:
            ValueError: the tensor does not fit.
        """

    def _paired_call(self, layer: str, number: int, at: int) -> tuple[Pair, Call] | None:
        match = self._alignment.pair(layer, number)
        if match is None:
            return None
        pair, truth_number = match
        call = self._calls.get((pair.truth, truth_number, at))
        return None if call is None else (pair, call)

    def _tensors(
        self,
        layer: str,
        pairs: Sequence[TensorPair],
        refs: Sequence[TensorRef],
        mine: Mapping[str, Any],
    ) -> dict[str, Any]:
        by_path = {ref.path: ref for ref in refs}
        new: dict[str, Any] = {}
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

    def _misfit(self, layer: str, pair: TensorPair, why: str) -> None:
        note = f"{layer or 'the model'}: the truth's {pair.truth or 'output'} does not fit ({why})"
        if note not in self.notes:
            self.notes.append(note)
