"""The CUDA devices reported to the program, and the device where its tensors really are."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from shims.errors import DeviceNotAnsweredError

# Number of known device storages at which dead ones are removed; doubled afterwards.
_SWEEP_AT = 4096


class HostPlacement:
    """Placement in host memory: a tensor is "on the device" if the program moved or computed it there.

    CUDA copies moved tensors. The shims must copy too, or an in-place operation on the moved tensor
    would change its source. To copy only once, this class remembers the moved storages by weak
    references.
    """

    target = torch.device("cpu")

    def __init__(self) -> None:
        # A storage's address -> the weak reference that prevents its reuse, and the ordinal of its
        # CUDA device.
        self._known: dict[int, tuple[StorageWeakRef, int]] = {}
        self._limit = _SWEEP_AT
        self._lock = threading.Lock()

    def ordinal(self, tensor: torch.Tensor) -> int | None:
        """Return the CUDA device on which the program has this tensor, or None for the host."""
        try:
            known = self._known.get(tensor.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError, ValueError):
            # Sparse tensors, functorch's wrappers and weights of lazy layers have no storage.
            return None
        return None if known is None else known[1]

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the program has this tensor on a CUDA device."""
        return self.ordinal(tensor) is not None

    def mark(self, tensor: torch.Tensor, ordinal: int) -> None:
        """Record that this tensor is on a CUDA device."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError, ValueError):
            return
        self.mark_storage(storage, ordinal)

    def mark_storage(self, storage: Any, ordinal: int) -> None:
        """Record that this storage is on a CUDA device."""
        if storage._cdata in self._known:
            return
        with self._lock:
            reference = StorageWeakRef(storage)
            self._known[reference.cdata] = (reference, ordinal)
            if len(self._known) > self._limit:
                for key in [key for key, (item, _) in self._known.items() if item.expired()]:
                    del self._known[key]
                self._limit = max(_SWEEP_AT, 2 * len(self._known))

    def copied(self, source: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
        """Return `moved`, or a copy if the move returned the source itself."""
        if moved.layout is not torch.strided:
            return moved.clone() if moved is source else moved
        return moved.clone() if _shares(source, moved) else moved


class DevicePlacement(HostPlacement):
    """Placement on a TPU of torch_xla or torch_tpu, where tensors know their own device.

    Args:
        kind: torch's type of the device: "xla" or "tpu".
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.target = torch.device(kind)
        # A process has one device, whatever number the program used.
        self.current: Callable[[], int] = lambda: 0

    def ordinal(self, tensor: torch.Tensor) -> int | None:
        """Return the current device, if the tensor is on the TPU."""
        return self.current() if tensor.device.type == self.target.type else None

    def mark(self, tensor: torch.Tensor, ordinal: int) -> None:
        """Do nothing."""

    def mark_storage(self, storage: Any, ordinal: int) -> None:
        """Do nothing."""

    def copied(self, source: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
        """Return `moved`: a move between host and device always copies."""
        return moved


def _shares(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return tensor.untyped_storage()._cdata == other.untyped_storage()._cdata


class Devices:
    """CUDA devices reported to the program.

    Args:
        count: the number of devices.
        placement: the real placement of their tensors.
    """

    def __init__(self, count: int, placement: HostPlacement) -> None:
        self.count = count
        self.placement = placement
        self._current = threading.local()
        if isinstance(placement, DevicePlacement):
            placement.current = lambda: self.current

    @property
    def current(self) -> int:
        """Current device of this thread."""
        return getattr(self._current, "index", 0)

    @current.setter
    def current(self, device: Any) -> None:
        index = self.index(device)
        if index is not None:
            self._current.index = index

    @property
    def default(self) -> torch.device | None:
        """CUDA device that this thread set as default."""
        return getattr(self._current, "default", None)

    @default.setter
    def default(self, device: Any) -> None:
        self._current.default = device

    def index(self, device: Any) -> int | None:
        """Return the CUDA ordinal of `device`: the current one if it has no number; None if it is not CUDA.

        Raises:
            DeviceNotAnsweredError: there is no device with this number.
        """
        if device is None:
            return self.current
        if isinstance(device, str):
            device = torch.device(device)
        if isinstance(device, torch.device):
            if device.type == self.placement.target.type and device.type != "cpu":
                return self.current
            if device.type != "cuda":
                return None
            number = self.current if device.index is None else device.index
        else:
            number = int(device)
            if number == -1:
                return self.current
        if not 0 <= number < self.count:
            raise DeviceNotAnsweredError(
                f"CUDA error: invalid device ordinal {number}",
                f"the program runs with {self.count} devices",
                "device",
            )
        return number

    def names_cuda(self, device: Any) -> bool:
        """Whether `device` names a CUDA device: a string, a `torch.device` or a number."""
        if isinstance(device, str):
            return device.partition(":")[0] == "cuda"
        if isinstance(device, torch.device):
            return device.type == "cuda"
        return isinstance(device, int) and not isinstance(device, bool)

    def mapped(self, device: Any) -> Any:
        """Return the real device for anything that names a CUDA device, and other objects unchanged."""
        if device is None or not self.names_cuda(device):
            return device
        self.index(device)
        return self.placement.target

    @functools.cached_property
    def shown(self) -> tuple[torch.device, ...]:
        """Devices that the program reads from its tensors."""
        return tuple(torch.device("cuda", index) for index in range(self.count))
