"""What a layer is fed with in place of what its caller gives: the truth's tensors, as this side has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from migrate.parity.alignment import Pair, TensorPair
from migrate.parity.capture.jax_values import is_floating, rebuilt
from migrate.parity.dump import Call, Dump, TensorRef
from migrate.parity.sides.runner import Forced


class Feed:
    """The truth's tensors for the calls of one input.

    Attributes:
        notes: what could not be fed.
    """

    def __init__(self, forced: Forced) -> None:
        self._forced = forced
        self._truth = Dump(forced.truth)
        self._calls = {(one.layer, one.number, one.input): one for one in self._truth.calls}
        self.notes: list[str] = []

    def arguments(self, layer: str, number: int, input: int, given: Any) -> Any:  # noqa: A002
        """The arguments, those with a partner replaced; the same object where there is none."""
        found = self._find(layer, number, input)
        if found is None or not found[0].arguments:
            return given
        pair, call = found
        return self._replaced(layer, given, pair.arguments, call.arguments)

    def outputs(self, layer: str, number: int, input: int, made: Any) -> Any:  # noqa: A002
        """What the caller goes on with."""
        found = self._find(layer, number, input)
        if found is None or not found[0].outputs:
            return made
        pair, call = found
        return self._replaced(layer, made, pair.outputs, call.outputs)

    def _find(self, layer: str, number: int, input: int) -> tuple[Pair, Call] | None:  # noqa: A002
        found = self._forced.alignment.pair(layer, number)
        if found is None:
            return None
        pair, truth_number = found
        call = self._calls.get((pair.truth, truth_number, input))
        return None if call is None else (pair, call)

    def _replaced(
        self, layer: str, value: Any, pairs: Sequence[TensorPair], refs: Sequence[TensorRef]
    ) -> Any:
        known = {ref.path: ref for ref in refs}
        wanted = {pair.mine: pair for pair in pairs if pair.truth in known}

        def replace(path: str, array: Any) -> Any:
            pair = wanted.get(path)
            if pair is None:
                return array
            theirs = np.asarray(pair.as_mine(self._truth.tensor(known[pair.truth])))
            if theirs.shape != array.shape:
                self._tell(
                    f"{layer or 'the model'}: {path or 'its tensor'} is {list(array.shape)}, the truth's "
                    f"{list(theirs.shape)}; it was not fed"
                )
                return array
            return _cast(theirs, array.dtype)

        return rebuilt(value, replace)

    def _tell(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


def _cast(array: np.ndarray[Any, Any], dtype: Any) -> Any:
    """The array in that dtype; finite numbers that it does not hold become its largest."""
    import jax.numpy as jnp

    if is_floating(array.dtype) and is_floating(dtype):
        largest = float(jnp.finfo(dtype).max)
        array = np.where(np.isfinite(array), np.clip(array, -largest, largest), array)
    return jnp.asarray(array.astype(dtype))
