"""Feed each torch layer with the truth's inputs, and its caller with the truth's outputs."""

from __future__ import annotations

from typing import Any

from migrate.parity.dump.dump import TensorRef
from migrate.parity.dump.reference import Forced
from migrate.parity.ground.alignment import TensorPair
from migrate.parity.judge.probes import lie_as
from migrate.parity.sides.forced import Forcing
from migrate.parity.sides.torch.capture.tree import to_tensor

# A layer's output is used by the next layers: attention and its mask, three projections of one input.
_RECENT = 4


class TorchForcing(Forcing):
    """See `Forcing`."""

    def __init__(self, forced: Forced) -> None:
        super().__init__(forced)
        self._recent: dict[Any, tuple[Any, int]] = {}

    def _tensor(self, pair: TensorPair, ref: TensorRef, like: Any, same: dict[Any, Any]) -> Any:
        """Convert the truth's tensor; the same input tensor gives the same result, unless it was written
        into.
        """
        layout = ref.file, ref.key, pair.axes, pair.shape, pair.split
        key = *layout, tuple(like.shape), like.dtype, like.device
        tensor, version = self._recent.pop(key, (None, -1))
        if tensor is None or tensor._version != version:
            tensor = self._read(pair, ref, like)
        elif tensor is not like and (id(like), key) not in same:
            # Other layers hold it, and must not see what this layer writes into its argument.
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
