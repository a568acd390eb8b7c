"""Patches of module moves, and of loaders that pin memory."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy
from torch.utils.data import DataLoader

from shims.patches import tensors
from shims.patches.devices import Devices
from shims.patches.registry import Patch, patch


def patches(devices: Devices) -> Iterator[Patch]:
    """Yield the patches of `nn.Module.to`, `.cuda` and `.type`, `DataLoader`, and the default device."""
    module_to = torch.nn.Module.to
    placement = devices.placement

    @functools.wraps(module_to)
    def to(module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        asked = kwargs.get("device", args[0] if args else None)
        if devices.names_cuda(asked):
            dtype = kwargs.get("dtype", args[1] if len(args) > 1 else None)
            return moved_to(module, devices.index(asked), dtype)
        return module_to(module, *args, **kwargs)

    def moved_to(
        module: torch.nn.Module, ordinal: int | None, dtype: torch.dtype | None = None
    ) -> torch.nn.Module:
        def move(tensor: torch.Tensor) -> torch.Tensor:
            if is_lazy(tensor):
                return tensor
            wanted = dtype if tensor.is_floating_point() or tensor.is_complex() else None
            moved = tensor.to(placement.target, wanted)
            if placement.ordinal(tensor) != ordinal:
                moved = placement.copied(tensor, moved)
            placement.mark(moved, ordinal or 0)
            return moved

        for part in _moved_lazy(module, torch.device("cuda", ordinal or 0), dtype):
            marked_once(part, ordinal or 0)
        return module._apply(move)

    def marked_once(part: torch.nn.Module, ordinal: int) -> None:
        """Mark the weights of a lazy layer when its first forward has created them."""

        def mark(part: torch.nn.Module, _: Any) -> None:
            handle.remove()
            for weight in (*part.parameters(recurse=False), *part.buffers(recurse=False)):
                placement.mark(weight, ordinal)

        handle = part.register_forward_pre_hook(mark)

    def cuda(module: torch.nn.Module, device: Any = None) -> torch.nn.Module:
        return moved_to(module, devices.index(device))

    @functools.wraps(torch.nn.Module.type)
    def module_type(module: torch.nn.Module, dst_type: Any) -> torch.nn.Module:
        dtype, to_cuda = tensors.requested_type(dst_type)
        return module._apply(
            lambda tensor: tensor.to("cuda" if to_cuda else tensor.device, dtype or dst_type)
        )

    moves = f"copies its parameters to {placement.target}"
    yield patch(torch.nn.Module, "to", to, moves)
    yield patch(torch.nn.Module, "cuda", cuda, moves)
    yield patch(torch.nn.Module, "type", module_type, moves)

    loader_init = DataLoader.__init__

    @functools.wraps(loader_init)
    def init(loader: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("pin_memory_device", None)
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        loader_init(loader, *args, **kwargs)

    yield patch(DataLoader, "__init__", init, "memory is not pinned: no copy engine reads it")

    set_default_device, get_default_device = torch.set_default_device, torch.get_default_device

    def set_default(device: Any) -> None:
        devices.default = None
        if devices.names_cuda(device):
            devices.index(device)
            set_default_device(None)
            devices.default = torch.device(device)
        else:
            set_default_device(device)

    yield patch(torch, "set_default_device", set_default, "new tensors are on the mapped device")
    yield patch(
        torch,
        "get_default_device",
        lambda: devices.default or get_default_device(),
        "what set_default_device was given",
    )


def _moved_lazy(
    module: torch.nn.Module, device: torch.device, dtype: torch.dtype | None
) -> Iterator[torch.nn.Module]:
    """Make the lazy layers of a module create their weights on `device`, and yield the layers.

    A move to XLA replaces the weights, and would turn some into weights without elements.
    """
    for part in module.modules():
        lazy = False
        for name, weight in part._parameters.items():
            if isinstance(weight, UninitializedParameter):
                kind = dtype or weight.data.dtype
                uninitialized: Any = UninitializedParameter
                part._parameters[name] = uninitialized(weight.requires_grad, device, kind)
                lazy = True
        for name, buffer in part._buffers.items():
            if isinstance(buffer, UninitializedBuffer):
                kind = dtype or buffer.data.dtype
                part._buffers[name] = UninitializedBuffer(buffer.requires_grad, device, kind)
                lazy = True
        if lazy:
            yield part
