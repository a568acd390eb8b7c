"""Torch function mode that replaces CUDA devices in the arguments of every torch function."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from shims.patches import calls, half, tensors
from shims.patches.devices import Devices
from shims.patches.registry import Patch, patch
from shims.patches.rng import HostGenerators

# Functions that share their argument's memory if possible; CUDA copies.
_FROM_MEMORY = frozenset({torch.as_tensor, torch.asarray})


class DeviceMode(TorchFunctionMode):
    """Mode that maps the devices in the arguments of every torch function.

    Args:
        devices: the CUDA devices reported to the program.
        generators: the random generators of the devices.
    """

    def __init__(self, devices: Devices, generators: HostGenerators) -> None:
        super().__init__()
        self._devices = devices
        self._placement = devices.placement
        self._generators = generators
        self._special: dict[Any, Callable[..., Any]] = {
            # Only referenced here, not used yet.
            torch.device: torch.device,
            torch.Tensor.backward: self._backward,
            torch.Tensor.cuda: self._cuda,
            torch.Tensor.cpu: self._cpu,
            torch.Tensor.to: self._to,
            torch.Tensor.type: self._type,
            torch.Tensor.pin_memory: lambda tensor, device=None: tensor,
            torch.Tensor.is_pinned: lambda tensor, device=None: False,
            torch.Tensor.get_device: self._get_device,
            torch.Tensor.is_cuda.__get__: self._placement.holds,
            torch.Tensor.device.__get__: self._device,
        }
        if devices.placement.target.type == "xla":
            self._special[torch.Tensor.detach_] = _detach_
        self._kernels = half.kernels() if devices.placement.target.type == "cpu" else {}
        self._logs = calls.enabled()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs) if kwargs else {}
        special = self._special.get(func)
        if special is not None:
            return special(*args, **kwargs)
        if kwargs.get("pin_memory"):
            del kwargs["pin_memory"]
        asked = kwargs.get("device")
        if asked is None and self._devices.default is not None and func in _device_constructors():
            asked = self._devices.default
        if asked is not None:
            kwargs["device"] = self._devices.mapped(asked)
        # In other functions a device may be in any argument, but only as a device: numbers are
        # numbers.
        for index, arg in enumerate(args):
            if isinstance(arg, torch.device) and arg.type == "cuda":
                asked = arg
                args = (*args[:index], self._devices.mapped(arg), *args[index + 1 :])
        if asked is None:
            ordinal = self._ordinal(args)
            if ordinal is None and kwargs:
                ordinal = self._ordinal(kwargs.values())
        else:
            ordinal = self._devices.index(asked) if self._devices.names_cuda(asked) else None
            if ordinal is not None and self._logs:
                calls.saw(f"device={asked!s} in {_name(func)}", f"on {self._placement.target}")
        if ordinal is not None:
            func = self._kernels.get(func, func)
        result = self._generators.drawing(func, ordinal, args, kwargs)
        if ordinal is not None:
            if func in _FROM_MEMORY and not self._placement.holds(result):
                # From an array, whose memory is not on the device.
                result = result.to(self._placement.target, copy=True)
            self._mark(result, ordinal)
        return result

    def _ordinal(self, values: Any) -> int | None:
        """Return the CUDA device of the first tensor among `values` that is on one."""
        for value in values:
            if isinstance(value, torch.Tensor):
                ordinal = self._placement.ordinal(value)
            elif type(value) in (list, tuple) and value:
                ordinal = self._ordinal(value[:1])
            else:
                continue
            if ordinal is not None:
                return ordinal
        return None

    def _mark(self, result: Any, ordinal: int) -> None:
        if isinstance(result, torch.Tensor):
            self._placement.mark(result, ordinal)
        elif isinstance(result, list | tuple):
            for item in result:
                self._mark(item, ordinal)

    def _backward(
        self,
        tensor: torch.Tensor,
        gradient: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        # A torch function runs without the mode, but this one runs the program's code: hooks,
        # backward of its own functions, checkpoints that recompute their forward.
        with self:
            torch.autograd.backward(tensor, gradient, retain_graph, create_graph, inputs=inputs)

    def _cuda(
        self,
        tensor: torch.Tensor,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: Any = torch.preserve_format,
    ) -> torch.Tensor:
        ordinal = self._devices.index(device)
        if self._logs:
            calls.saw("Tensor.cuda", f"on {self._placement.target}")
        moved = tensor.to(self._placement.target, memory_format=memory_format)
        return self._moved(tensor, moved, ordinal)

    def _moved(
        self, source: torch.Tensor, moved: torch.Tensor, ordinal: int | None
    ) -> torch.Tensor:
        if self._placement.ordinal(source) != ordinal:
            moved = self._placement.copied(source, moved)
        self._placement.mark(moved, ordinal or 0)
        return moved

    def _cpu(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        moved = tensor.cpu(*args, **kwargs)
        return self._placement.copied(tensor, moved) if self._placement.holds(tensor) else moved

    def _to(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        asked = kwargs.get("device")
        if asked is None:
            asked = kwargs.get("other", args[0] if args else None)
        if isinstance(asked, torch.Tensor):
            # Like the other tensor: its device and its dtype.
            ordinal, named = self._placement.ordinal(asked), True
        else:
            named = isinstance(asked, str | int | torch.device)
            ordinal = self._devices.index(asked) if self._devices.names_cuda(asked) else None
        if "device" in kwargs:
            kwargs["device"] = self._devices.mapped(kwargs["device"])
        if args:
            args = (self._devices.mapped(args[0]), *args[1:])
        moved = tensor.to(*args, **kwargs)
        if ordinal is not None:
            if self._logs and not isinstance(asked, torch.Tensor):
                calls.saw(f"Tensor.to({asked!s})", f"on {self._placement.target}")
            return self._moved(tensor, moved, ordinal)
        ordinal = self._placement.ordinal(tensor)
        if ordinal is None:
            return moved
        if named:
            return self._placement.copied(tensor, moved)
        self._placement.mark(moved, ordinal)
        return moved

    def _type(self, tensor: torch.Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
        if dtype is None:
            name = f"{tensors.NAMES.get(tensor.dtype, tensor.type().rpartition('.')[2])}"
            return f"torch.cuda.{name}" if self._placement.holds(tensor) else tensor.type()
        wanted, to_cuda = tensors.requested_type(dtype)
        if wanted is None:
            return tensor.type(dtype, non_blocking)
        if to_cuda is None:
            to_cuda = self._placement.holds(tensor)
        if to_cuda:
            ordinal = self._placement.ordinal(tensor)
            ordinal = self._devices.current if ordinal is None else ordinal
            return self._moved(tensor, tensor.to(self._placement.target, wanted), ordinal)
        moved = tensor.to("cpu", wanted)
        return self._placement.copied(tensor, moved) if self._placement.holds(tensor) else moved

    def _device(self, tensor: torch.Tensor) -> torch.device:
        # torch's own Python code selects kernels by the real device; the program reads the device
        # that it asked for.
        ordinal = None if internal_caller() else self._placement.ordinal(tensor)
        return tensor.device if ordinal is None else self._devices.shown[ordinal]

    def _get_device(self, tensor: torch.Tensor) -> int:
        ordinal = None if internal_caller() else self._placement.ordinal(tensor)
        return tensor.get_device() if ordinal is None else ordinal


def _detach_(tensor: torch.Tensor) -> torch.Tensor:
    # On XLA gradients are views of DDP's buckets, which torch does not detach. They have no graph.
    if tensor._is_view() and not tensor.requires_grad:
        return tensor
    return tensor.detach_()


def internal_caller() -> bool:
    """Whether torch's own Python code called the torch function that is being answered."""
    # Frame 1 is the answer, 2 the mode, 3 the caller: another mode, or the code itself.
    frame: Any = sys._getframe(3)
    while frame.f_back and frame.f_code.co_name == "__torch_function__":
        frame = frame.f_back
    return calls.internal(frame)


def _overridden(tensors: Any) -> bool:
    ordinary = (torch.Tensor.__torch_function__, torch._C._disabled_torch_function_impl)
    return any(
        getattr(type(tensor), "__torch_function__", ordinary[0]) not in ordinary
        for tensor in tensors
    )


def _name(func: Any) -> str:
    return getattr(func, "__name__", str(func))


class EveryThread:
    """Installation of the mode in every thread: torch has one stack of modes per thread.

    Args:
        devices: the CUDA devices reported to the program.
        generators: the random generators of the devices.
        handles: handles of torch's hooks, removed at the end.
    """

    def __init__(self, devices: Devices, generators: HostGenerators, handles: list[Any]) -> None:
        self._handles = handles
        self._make = functools.partial(DeviceMode, devices, generators)
        self._entered: DeviceMode | None = None
        self.active = True

    def patches(self) -> Iterator[Patch]:
        """Yield the patches of the start of threads and of the backward pass."""
        bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
        threads = self

        @functools.wraps(bootstrap)
        def with_mode(thread: threading.Thread) -> None:
            if not threads.active:
                bootstrap(thread)
                return
            with threads._make():
                bootstrap(thread)

        # Otherwise the backward pass would run without the mode, like any torch function, and with
        # it the program's hooks and checkpoints. Only tensors of other kinds matter.
        yield patch(
            torch.autograd, "has_torch_function", _overridden, "backward sees the same devices"
        )
        yield patch(threading.Thread, "_bootstrap_inner", with_mode, "threads see the same devices")

    def enter(self) -> None:
        """Start mapping in this thread."""
        self._entered = self._make()
        self._entered.__enter__()

    def leave(self) -> None:
        """Stop mapping in this thread and in threads that start from now on."""
        self.active = False
        for handle in self._handles:
            handle.remove()
        if self._entered is not None:
            self._entered.__exit__(None, None, None)
            self._entered = None
