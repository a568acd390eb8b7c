"""The CUDA devices that the program believes in, and the place where its tensors really are."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from shims.errors import DeviceNotAnsweredError

# Storages known to be "on the device" are swept of the dead ones at this number, then at twice it.
_SWEEP_AT = 4096


class HostPlace:
    """Host memory: a tensor is on the device when the program put it there, or computed it from one.

    CUDA copies what is moved; so does this, or an in-place operation on the moved tensor would
    change its source. To copy only once it has to know which storages were moved: it keeps a weak
    reference to each.
    """

    target = torch.device("cpu")

    def __init__(self) -> None:
        # A storage's address -> the reference that keeps it from being used again, and the ordinal
        # of its CUDA device.
        self._known: dict[int, tuple[StorageWeakRef, int]] = {}
        self._limit = _SWEEP_AT
        self._lock = threading.Lock()

    def ordinal(self, tensor: torch.Tensor) -> int | None:
        """The CUDA device that the program has this tensor on; None: on the host."""
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
        """Remember that this tensor is on a CUDA device."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError, ValueError):
            return
        self.mark_storage(storage, ordinal)

    def mark_storage(self, storage: Any, ordinal: int) -> None:
        """Remember that this storage is on a CUDA device."""
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
        """`moved`, or a copy of it where the move gave the source itself."""
        if moved.layout is not torch.strided:
            return moved.clone() if moved is source else moved
        return moved.clone() if _shares(source, moved) else moved


class XlaPlace(HostPlace):
    """An XLA device: tensors say themselves where they are."""

    target = torch.device("xla")

    def __init__(self) -> None:
        super().__init__()
        # A process has one XLA device, whatever number the program gave it.
        self.current: Callable[[], int] = lambda: 0

    def ordinal(self, tensor: torch.Tensor) -> int | None:
        """The current device, if the tensor is on XLA."""
        return self.current() if tensor.device.type == "xla" else None

    def mark(self, tensor: torch.Tensor, ordinal: int) -> None:
        """Nothing to remember."""

    def mark_storage(self, storage: Any, ordinal: int) -> None:
        """Nothing to remember."""

    def copied(self, source: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
        """A move between host and XLA copies by itself."""
        return moved


def _shares(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata


class Devices:
    """The CUDA devices that the program believes in.

    Args:
        count: how many.
        place: where their tensors really are.
    """

    def __init__(self, count: int, place: HostPlace) -> None:
        self.count = count
        self.place = place
        self._current = threading.local()
        if isinstance(place, XlaPlace):
            place.current = lambda: self.current

    @property
    def current(self) -> int:
        """The current device of this thread."""
        return getattr(self._current, "index", 0)

    @current.setter
    def current(self, device: Any) -> None:
        index = self.index(device)
        if index is not None:
            self._current.index = index

    @property
    def default(self) -> torch.device | None:
        """The CUDA device that this thread made its default."""
        return getattr(self._current, "default", None)

    @default.setter
    def default(self, device: Any) -> None:
        self._current.default = device

    def index(self, device: Any) -> int | None:
        """The CUDA ordinal that `device` names, the current one without a number; None if not CUDA.

        Raises:
            DeviceNotAnsweredError: there is no device of that number.
        """
        if device is None:
            return self.current
        if isinstance(device, str):
            device = torch.device(device)
        if isinstance(device, torch.device):
            if device.type == "xla" and self.place.target.type == "xla":
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
        """The real place of anything that names a CUDA device; everything else as it is."""
        if device is None or not self.names_cuda(device):
            return device
        self.index(device)
        return self.place.target

    @functools.cached_property
    def shown(self) -> tuple[torch.device, ...]:
        """What the program reads as the device of its tensors."""
        return tuple(torch.device("cuda", index) for index in range(self.count))
