"""Patches that load checkpoints with CUDA devices onto the real devices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from shims.patches.devices import Devices
from shims.patches.registry import Patch, patch


def patches(devices: Devices) -> Iterator[Patch]:
    """Yield the patches of `torch.load`, its `map_location`, `storage.cuda()`, and `torch.save` of a TPU's
    tensors."""
    load = torch.load
    placement = devices.placement

    def to_device(storage: Any, ordinal: int | None) -> Any:
        # An XLA storage cannot be loaded: the tensor is moved when the program uses it.
        placement.mark_storage(getattr(storage, "_untyped_storage", storage), ordinal or 0)
        return storage

    @functools.wraps(load)
    def load_mapped(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        return load(f, _placing(devices, map_location, to_device), *args, **kwargs)

    yield patch(torch, "load", load_mapped, "CUDA locations lead to host memory")
    yield patch(torch.serialization, "load", load_mapped, "CUDA locations lead to host memory")

    def cuda(storage: Any, device: Any = None, non_blocking: bool = False) -> Any:
        return to_device(storage.clone(), devices.index(device))

    for kind in (torch.UntypedStorage, torch.TypedStorage):
        yield patch(kind, "cuda", cuda, "stays in host memory")

    if placement.target.type == "tpu":
        tag = torch.serialization.location_tag

        # torch copies the storages to the host itself. Whoever loads the file needs no torch_tpu.
        @functools.wraps(tag)
        def on_host(storage: Any) -> Any:
            location = tag(storage)
            return "cpu" if str(location).partition(":")[0] == "tpu" else location

        answers = "torch.save writes a TPU's tensors as the host's"
        yield patch(torch.serialization, "location_tag", on_host, answers)
    elif placement.target.type == "xla":
        save = torch.save

        @functools.wraps(save)
        def save_from_host(obj: Any, *args: Any, **kwargs: Any) -> None:
            from torch_xla.core import xla_model

            save(xla_model._maybe_convert_to_cpu(obj), *args, **kwargs)

        for module in (torch, torch.serialization):
            yield patch(module, "save", save_from_host, "tensors are saved from host memory")


def _placing(devices: Devices, asked: Any, to_device: Callable[[Any, int | None], Any]) -> Any:
    """Return a `map_location` function for the program's argument."""

    def placed(storage: Any, location: str) -> Any:
        if callable(asked):
            # The result for another location must still be a storage.
            result = asked(storage, location)
            return storage if result is None else result
        target = asked
        if isinstance(asked, dict):
            target = asked.get(location, asked.get(location.partition(":")[0], location))
        elif asked is None:
            # A file of CUDA tensors is loaded to the devices of this machine.
            target = location
        if devices.names_cuda(target):
            # A file from a machine with more devices is readable without a map_location.
            return to_device(storage, 0 if asked is None else devices.index(target))
        return storage

    if isinstance(asked, str | torch.device) and not devices.names_cuda(asked):
        return asked
    if devices.names_cuda(asked):
        devices.index(asked)
    return placed
