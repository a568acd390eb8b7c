"""What a layer is fed with in place of what its caller gives: the truth's tensors, as this side has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from migrate.parity.dump.dump import Call, TensorRef
from migrate.parity.ground.alignment import Pair, TensorPair
from migrate.parity.ground.last_used import LastUsed
from migrate.parity.judge.probes import lie_as
from migrate.parity.sides.jax.capture.values import is_floating, rebuilt, tensors
from migrate.parity.sides.runner import Forced

_RECENT = 4


class Feed:
    """The truth's tensors for the calls of one input.

    Attributes:
        notes: what could not be fed.
    """

    def __init__(self, forced: Forced) -> None:
        self._forced = forced
        self._truth = forced.dump
        self._recent: LastUsed[Any] = LastUsed(_RECENT)
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
        by_path = {ref.path: ref for ref in refs}
        mine = tensors(value)
        new: dict[str, Any] = {}
        # What is one array to the caller stays one, and what is two stays two.
        same: dict[Any, Any] = {}
        for pair in pairs:
            ref, like = by_path.get(pair.truth), mine.get(pair.mine)
            if ref is None or like is None:
                continue
            key = (id(like), ref.file, ref.key, pair.axes, pair.shape, pair.split)
            try:
                if key not in same:
                    array = self._array(pair, ref, like)
                    again = any(array is one for one in same.values())
                    same[key] = array.copy() if again else array
            except ValueError as error:
                self._misfit(layer, pair, str(error))
                return value
            new[pair.mine] = same[key]
        return rebuilt(value, lambda path, array: new.get(path, array))

    def _array(self, pair: TensorPair, ref: TensorRef, like: Any) -> Any:
        """The truth's tensor; what one layer was answered with the next takes."""
        key = ref.file, ref.key, pair.axes, pair.shape, pair.split, like.shape, like.dtype
        return self._recent.get(key, lambda: self._read(pair, ref, like))

    def _read(self, pair: TensorPair, ref: TensorRef, like: Any) -> Any:
        # The pair was found on the first input; this one may be longer.
        lying = lie_as(pair, self._truth.tensor(ref), tuple(like.shape))
        if lying is None:
            raise ValueError(f"{list(ref.shape)} cannot lie as {list(like.shape)}")
        return _as(like, lying)

    def _misfit(self, layer: str, pair: TensorPair, why: str) -> None:
        note = f"{layer or 'the model'}: the truth's {pair.truth or 'output'} does not fit ({why})"
        if note not in self.notes:
            self.notes.append(note)


def _as(like: Any, array: np.ndarray[Any, Any]) -> Any:
    """The truth's array in the dtype of another; numbers that it does not hold become its largest.

    Raises:
        ValueError: the shapes differ, or one has integers and the other real numbers.
    """
    import jax
    import jax.numpy as jnp

    if like.dtype.kind == "c" and array.dtype.kind == "f" and array.shape[-1:] == (2,):
        array = array[..., 0] + 1j * array[..., 1]
    if array.shape != like.shape:
        raise ValueError(f"shape {list(array.shape)} instead of {list(like.shape)}")
    if is_floating(array.dtype) != is_floating(like.dtype):
        raise ValueError(f"{array.dtype.name} instead of {like.dtype.name}")
    with np.errstate(over="ignore"):
        cast = array.astype(like.dtype)
    if is_floating(like.dtype) and cast.dtype != array.dtype and np.isinf(cast).any():
        beyond = np.isinf(cast) & np.isfinite(array)
        if beyond.any():
            largest = jnp.finfo(like.dtype).max
            cast = np.where(beyond, np.where(array > 0, largest, -largest), cast)
    return jax.device_put(cast.astype(like.dtype, copy=False))
