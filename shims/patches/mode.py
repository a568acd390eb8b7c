"""Every torch function sees the real devices for the CUDA devices in its arguments."""

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
from shims.patches.rng import Generators

# These give the memory of their argument where they can; CUDA copies.
_FROM_MEMORY = frozenset({torch.as_tensor, torch.asarray})


class DeviceMode(TorchFunctionMode):
    """Maps the devices in the arguments of every torch function.

    Args:
        devices: the CUDA devices that the program believes in.
        generators: their random generators.
    """

    def __init__(self, devices: Devices, generators: Generators) -> None:
        super().__init__()
        self._devices = devices
        self._place = devices.place
        self._generators = generators
        self._special: dict[Any, Callable[..., Any]] = {
            # Named, not used yet.
            torch.device: torch.device,
            torch.Tensor.backward: self._backward,
            torch.Tensor.cuda: self._cuda,
            torch.Tensor.cpu: self._cpu,
            torch.Tensor.to: self._to,
            torch.Tensor.type: self._type,
            torch.Tensor.pin_memory: lambda tensor, device=None: tensor,
            torch.Tensor.is_pinned: lambda tensor, device=None: False,
            torch.Tensor.get_device: self._get_device,
            torch.Tensor.is_cuda.__get__: self._place.holds,
            torch.Tensor.device.__get__: self._device,
        }
        if devices.place.target.type == "xla":
            self._special[torch.Tensor.detach_] = _detach_
        self._kernels = half.kernels() if devices.place.target.type == "cpu" else {}
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
        # Elsewhere a device may stand anywhere, but only as itself: numbers are numbers.
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
                calls.saw(f"device={asked!s} in {_name(func)}", f"on {self._place.target}")
        if ordinal is not None:
            func = self._kernels.get(func, func)
        result = self._generators.drawing(func, ordinal, args, kwargs)
        if ordinal is not None:
            if func in _FROM_MEMORY and not self._place.holds(result):
                # From an array: its memory is not the device's.
                result = result.to(self._place.target, copy=True)
            self._mark(result, ordinal)
        return result

    def _ordinal(self, values: Any) -> int | None:
        """The CUDA device of the first tensor among `values` that is on one."""
        for value in values:
            if isinstance(value, torch.Tensor):
                ordinal = self._place.ordinal(value)
            elif type(value) in (list, tuple) and value:
                ordinal = self._ordinal(value[:1])
            else:
                continue
            if ordinal is not None:
                return ordinal
        return None

    def _mark(self, result: Any, ordinal: int) -> None:
        if isinstance(result, torch.Tensor):
            self._place.mark(result, ordinal)
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
        # A torch function runs without the mode, but this one runs code of the program: hooks,
        # its own functions' backward, checkpoints that compute their forward again.
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
            calls.saw("Tensor.cuda", f"on {self._place.target}")
        moved = tensor.to(self._place.target, memory_format=memory_format)
        return self._moved(tensor, moved, ordinal)

    def _moved(
        self, source: torch.Tensor, moved: torch.Tensor, ordinal: int | None
    ) -> torch.Tensor:
        if self._place.ordinal(source) != ordinal:
            moved = self._place.copied(source, moved)
        self._place.mark(moved, ordinal or 0)
        return moved

    def _cpu(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        moved = tensor.cpu(*args, **kwargs)
        return self._place.copied(tensor, moved) if self._place.holds(tensor) else moved

    def _to(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        asked = kwargs.get("device")
        if asked is None:
            asked = kwargs.get("other", args[0] if args else None)
        if isinstance(asked, torch.Tensor):
            # As the other tensor: its place and its dtype.
            ordinal, named = self._place.ordinal(asked), True
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
                calls.saw(f"Tensor.to({asked!s})", f"on {self._place.target}")
            return self._moved(tensor, moved, ordinal)
        ordinal = self._place.ordinal(tensor)
        if ordinal is None:
            return moved
        if named:
            return self._place.copied(tensor, moved)
        self._place.mark(moved, ordinal)
        return moved

    def _type(self, tensor: torch.Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
        if dtype is None:
            name = f"{tensors.NAMES.get(tensor.dtype, tensor.type().rpartition('.')[2])}"
            return f"torch.cuda.{name}" if self._place.holds(tensor) else tensor.type()
        wanted, to_cuda = tensors.wanted(dtype)
        if wanted is None:
            return tensor.type(dtype, non_blocking)
        if to_cuda is None:
            to_cuda = self._place.holds(tensor)
        if to_cuda:
            ordinal = self._place.ordinal(tensor)
            ordinal = self._devices.current if ordinal is None else ordinal
            return self._moved(tensor, tensor.to(self._place.target, wanted), ordinal)
        moved = tensor.to("cpu", wanted)
        return self._place.copied(tensor, moved) if self._place.holds(tensor) else moved

    def _device(self, tensor: torch.Tensor) -> torch.device:
        # Torch's own Python code decides by the real device what it can run; the program is shown
        # the device that it asked for.
        ordinal = None if internal_caller() else self._place.ordinal(tensor)
        return tensor.device if ordinal is None else self._devices.shown[ordinal]

    def _get_device(self, tensor: torch.Tensor) -> int:
        ordinal = None if internal_caller() else self._place.ordinal(tensor)
        return tensor.get_device() if ordinal is None else ordinal


def _detach_(tensor: torch.Tensor) -> torch.Tensor:
    # On XLA gradients are views of DDP's buckets, which torch does not detach. They have no graph.
    if tensor._is_view() and not tensor.requires_grad:
        return tensor
    return tensor.detach_()


def internal_caller() -> bool:
    """Whether torch's own Python code called the torch function that is being answered."""
    # Frame 1 is the answer, 2 the mode, 3 who called: another mode, or the code itself.
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
    """The mode in every thread: the stack of modes is one per thread.

    Args:
        devices: the CUDA devices that the program believes in.
        generators: their random generators.
        handles: of torch's hooks, removed at the end.
    """

    def __init__(self, devices: Devices, generators: Generators, handles: list[Any]) -> None:
        self._handles = handles
        self._make = functools.partial(DeviceMode, devices, generators)
        self._entered: DeviceMode | None = None
        self.active = True

    def patches(self) -> Iterator[Patch]:
        """The start of threads, and the backward pass."""
        bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
        threads = self

        @functools.wraps(bootstrap)
        def with_mode(thread: threading.Thread) -> None:
            if not threads.active:
                bootstrap(thread)
                return
            with threads._make():
                bootstrap(thread)

        # Otherwise the backward pass would run without the mode, and with it the hooks and the
        # checkpoints of the program: a torch function does. Only tensors of other kinds matter.
        yield patch(
            torch.autograd, "has_torch_function", _overridden, "backward sees the same devices"
        )
        yield patch(threading.Thread, "_bootstrap_inner", with_mode, "threads see the same devices")

    def enter(self) -> None:
        """Start mapping in this thread."""
        self._entered = self._make()
        self._entered.__enter__()

    def leave(self) -> None:
        """Stop mapping in this thread, and in threads that start from now on."""
        self.active = False
        for handle in self._handles:
            handle.remove()
        if self._entered is not None:
            self._entered.__exit__(None, None, None)
            self._entered = None
