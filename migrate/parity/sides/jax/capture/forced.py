"""Replace the arguments and outputs of JAX layers by the truth's tensors, converted for this side."""

from __future__ import annotations

from typing import Any

import numpy as np

from migrate.parity.dump.dump import TensorRef
from migrate.parity.dump.reference import Forced
from migrate.parity.ground.alignment import TensorPair
from migrate.parity.ground.last_used import LastUsed
from migrate.parity.judge.probes import lie_as
from migrate.parity.sides.forced import Forcing
from migrate.parity.sides.jax.capture.values import is_floating, rebuilt, tensors

_RECENT = 4


class JaxForcing(Forcing):
    """See `Forcing`."""

    def __init__(self, forced: Forced) -> None:
        super().__init__(forced)
        self._recent: LastUsed[Any] = LastUsed(_RECENT)

    def arguments(self, layer: str, number: int, at: int, arguments: Any) -> Any:
        """Replace the arguments that have a partner; the same object where none has."""
        return _replaced(arguments, self.feed(layer, number, at, lambda: tensors(arguments)))

    def outputs(self, layer: str, number: int, at: int, outputs: Any) -> Any:
        """Replace the outputs with which the caller continues."""
        return _replaced(outputs, self.answer(layer, number, at, lambda: tensors(outputs)))

    def _tensor(self, pair: TensorPair, ref: TensorRef, like: Any, same: dict[Any, Any]) -> Any:
        key = (id(like), ref.file, ref.key, pair.axes, pair.shape, pair.split)
        if key not in same:
            array = self._array(pair, ref, like)
            again = any(array is earlier for earlier in same.values())
            same[key] = array.copy() if again else array
        return same[key]

    def _array(self, pair: TensorPair, ref: TensorRef, like: Any) -> Any:
        """Convert the truth's tensor; a layer's output is the next layer's argument."""
        key = ref.file, ref.key, pair.axes, pair.shape, pair.split, like.shape, like.dtype
        return self._recent.get(key, lambda: self._read(pair, ref, like))

    def _read(self, pair: TensorPair, ref: TensorRef, like: Any) -> Any:
        # The pair was found on the first input; this input may be longer.
        lying = lie_as(pair, self._truth.tensor(ref), tuple(like.shape))
        if lying is None:
            raise ValueError(f"{list(ref.shape)} cannot lie as {list(like.shape)}")
        return _as(like, lying)


def _replaced(value: Any, new: dict[str, Any]) -> Any:
    return rebuilt(value, lambda path, array: new.get(path, array)) if new else value


def _as(like: Any, array: np.ndarray[Any, Any]) -> Any:
    """Convert the truth's array to the dtype of another; numbers out of its range become its largest.

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
