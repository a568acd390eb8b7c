"""The truth's tensors in the place of what a side's layers are given, whatever the framework."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from migrate.parity.dump.dump import Call, TensorRef
from migrate.parity.dump.reference import Forced
from migrate.parity.ground.alignment import Pair, TensorPair


class Forcing(ABC):
    """What takes the place of arguments and outputs; tensors of the truth are read when they are needed.

    Attributes:
        notes: layers where the truth's tensors did not fit; they ran, and their callers went on, with what
            they had.
    """

    def __init__(self, forced: Forced) -> None:
        self._truth = forced.dump
        self._alignment = forced.alignment
        self._calls = {(call.layer, call.number, call.input): call for call in self._truth.calls}
        self.notes: list[str] = []

    def feed(
        self, layer: str, number: int, at: int, mine: Callable[[], Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Path → the truth's tensor, for the arguments that have a partner; none if one does not fit.

        Args:
            layer, number, at: the call of the side's layer, and the input.
            mine: gives what it would be called with.
        """
        pair, call = self._found(layer, number, at) or (None, None)
        if pair is None or call is None or not pair.arguments:
            return {}
        return self._tensors(layer, pair.arguments, call.arguments, mine())

    def answer(
        self, layer: str, number: int, at: int, mine: Callable[[], Mapping[str, Any]]
    ) -> dict[str, Any]:
        """The same for outputs: what the caller goes on with."""
        pair, call = self._found(layer, number, at) or (None, None)
        if pair is None or call is None or not pair.outputs:
            return {}
        return self._tensors(layer, pair.outputs, call.outputs, mine())

    @abstractmethod
    def _tensor(self, pair: TensorPair, ref: TensorRef, like: Any, same: dict[Any, Any]) -> Any:
        """The truth's tensor as this side has it.

        Args:
            like: what it takes the place of.
            same: kept for all tensors of one call: what is one to the caller stays one (attention looks
                whether its query is its key), and what is two stays two.

        Raises:
            ValueError: it does not fit.
        """

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
