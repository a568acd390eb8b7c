"""Tensors that are alive while each operator of a torch step runs by itself."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class LiveTensors(TorchDispatchMode):
    """Mode that counts the bytes of the tensors on a device, and the operators that run.

    Args:
        held: tensors that are alive from the beginning.
        kind: type of the device, as in "tpu".

    Attributes:
        peak: the most bytes at once, without padding and without what an operator needs beside its result.
        operators: number of operators with a tensor of the device, given or returned.
    """

    def __init__(self, held: Iterable[torch.Tensor], kind: str) -> None:
        super().__init__()
        self.peak = self.operators = 0
        self._kind = kind
        self._live = 0
        self._known: set[int] = set()
        for tensor in held:
            self._hold(tensor)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        created = self._there(result)
        self.operators += bool(created or self._there((args, kwargs)))
        for tensor in created:
            self._hold(tensor)
        return result

    def _there(self, values: Any) -> list[torch.Tensor]:
        """Return the tensors of the device among values."""
        tensors = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
        return [tensor for tensor in tensors if tensor.device.type == self._kind]

    def _hold(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self._live += size
        self.peak = max(self.peak, self._live)
        weakref.finalize(storage, self._let_go, key, size)

    def _let_go(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._live -= size
