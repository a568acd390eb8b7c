"""Unmodified CUDA training code on the CPU: `torch.cuda` answers, tensors stay in host memory.

    variables = shims.activate.environment("cpu", replicas=2)
    subprocess.run([sys.executable, "train.py"], env=os.environ | variables)

The program sees N CUDA devices. Every way to name one (`rank`, "cuda", "cuda:1",
`torch.device("cuda", 1)`, `.cuda()`, `device=`, `map_location=`) leads to the CPU; nccl is gloo.
What has no true answer stays an error of torch, or is a `DeviceNotAnsweredError`.

Known limits: tensors say that they are on the CPU (`tensor.device`, `tensor.is_cuda`), and moving
one to a device gives the same tensor, not a copy, so that an in-place change shows in both.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader

from shims import activate
from shims.errors import DeviceNotAnsweredError

_CPU = torch.device("cpu")


def install() -> None:
    """Answer for as many CUDA devices as the environment says, in this process and its threads.

    Raises:
        BackendError: the number of replicas is not set.
    """
    devices = _Devices(activate.replicas())
    _answer_torch_cuda(devices)
    _answer_modules(devices)
    _answer_serialization(devices)
    _answer_autocast()
    _answer_distributed()
    _enter_in_every_thread(devices)


class _Devices:
    """The CUDA devices that the program believes in.

    Args:
        count: how many.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._current = threading.local()

    @property
    def current(self) -> int:
        return getattr(self._current, "index", 0)

    @current.setter
    def current(self, device: Any) -> None:
        index = self.index(device)
        if index is not None:
            self._current.index = index

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
            )
        return number

    def mapped(self, device: Any) -> Any:
        """The CPU for anything that names a CUDA device; everything else as it is."""
        if isinstance(device, bool) or device is None:
            return device
        if isinstance(device, str):
            if device.partition(":")[0] != "cuda":
                return device
        elif isinstance(device, torch.device):
            if device.type != "cuda":
                return device
        elif not isinstance(device, int):
            return device
        self.index(device)
        return _CPU


class _DeviceMode(TorchFunctionMode):
    """Maps the devices in the arguments of every torch function."""

    def __init__(self, devices: _Devices) -> None:
        super().__init__()
        self._devices = devices

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            self._devices.index(kwargs.pop("device", args[1] if len(args) > 1 else None))
            return args[0].to(_CPU, **_only(kwargs, "memory_format"))
        if func is torch.Tensor.pin_memory:
            return args[0]
        if kwargs.get("pin_memory"):
            del kwargs["pin_memory"]
        if "device" in kwargs:
            kwargs["device"] = self._devices.mapped(kwargs["device"])
        if func is torch.Tensor.to and len(args) > 1:
            args = (args[0], self._devices.mapped(args[1]), *args[2:])
        else:
            # Elsewhere a device may stand anywhere, but only as itself: numbers are numbers.
            args = tuple(
                self._devices.mapped(arg) if isinstance(arg, torch.device) else arg for arg in args
            )
        return func(*args, **kwargs)


def _only(kwargs: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: kwargs[name] for name in names if name in kwargs}


def _enter_in_every_thread(devices: _Devices) -> None:
    # The stack of modes is one per thread.
    _DeviceMode(devices).__enter__()
    bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    @functools.wraps(bootstrap)
    def with_mode(thread: threading.Thread) -> None:
        with _DeviceMode(devices):
            bootstrap(thread)

    threading.Thread._bootstrap_inner = with_mode  # type: ignore[attr-defined]


def _answer_torch_cuda(devices: _Devices) -> None:
    cuda = torch.cuda

    class device:  # noqa: N801 - the name that it answers for
        """`torch.cuda.device`: makes a device the current one for a while."""

        def __init__(self, device: Any) -> None:
            self._index = devices.index(device)

        def __enter__(self) -> None:
            self._before = devices.current
            devices.current = self._index

        def __exit__(self, *exc_info: object) -> None:
            devices.current = self._before

    def set_device(device: Any) -> None:
        devices.current = device

    cuda.is_available = lambda: True
    cuda.device_count = lambda: devices.count
    cuda.current_device = lambda: devices.current
    cuda.set_device = set_device
    cuda.device = device
    cuda.synchronize = lambda device=None: None
    cuda.empty_cache = lambda: None
    # Asked by Adam and others at each step, once there is CUDA.
    cuda.is_current_stream_capturing = lambda: False
    cuda.is_bf16_supported = lambda including_emulation=True: True
    # Without a device these silently give 0.
    for name in (
        "memory_allocated",
        "max_memory_allocated",
        "memory_reserved",
        "max_memory_reserved",
        "memory_stats",
    ):
        setattr(cuda, name, _refusing(f"torch.cuda.{name}", "there is no CUDA memory to measure"))

    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None:
        accelerator.is_available = lambda: True
        accelerator.device_count = lambda: devices.count
        accelerator.current_accelerator = lambda check_available=False: torch.device("cuda")
        accelerator.current_device_index = lambda: devices.current
        accelerator.set_device_index = set_device
        accelerator.synchronize = lambda device=None: None

    set_default_device = torch.set_default_device
    torch.set_default_device = lambda device: set_default_device(devices.mapped(device))


def _refusing(name: str, remedy: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise DeviceNotAnsweredError(f"{name} has no answer on the CPU backend", remedy)

    return refuse


def _answer_modules(devices: _Devices) -> None:
    module_to = torch.nn.Module.to

    @functools.wraps(module_to)
    def to(module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        if args:
            args = (devices.mapped(args[0]), *args[1:])
        if "device" in kwargs:
            kwargs["device"] = devices.mapped(kwargs["device"])
        return module_to(module, *args, **kwargs)

    torch.nn.Module.to = to

    loader_init = DataLoader.__init__

    @functools.wraps(loader_init)
    def init(loader: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("pin_memory_device", None)
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        loader_init(loader, *args, **kwargs)

    DataLoader.__init__ = init


def _answer_serialization(devices: _Devices) -> None:
    load = torch.load

    @functools.wraps(load)
    def load_to_cpu(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if map_location is None:
            # A file with CUDA tensors goes to the devices that are here.
            map_location = _CPU
        elif isinstance(map_location, dict):
            map_location = {
                _location(source): _location(str(devices.mapped(target)))
                for source, target in map_location.items()
            }
        else:
            map_location = devices.mapped(map_location)
        return load(f, map_location, *args, **kwargs)

    torch.load = load_to_cpu


def _location(device: Any) -> Any:
    return str(device) if isinstance(device, torch.device) else device


def _answer_autocast() -> None:
    # Left as it is, a CUDA autocast silently does nothing to CPU tensors.
    autocast_init = torch.autocast.__init__

    @functools.wraps(autocast_init)
    def init(
        autocast: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any
    ) -> None:
        if device_type == "cuda":
            dtype = dtype or torch.get_autocast_dtype("cuda")
            device_type = "cpu"
        autocast_init(autocast, device_type, dtype, *args, **kwargs)

    torch.autocast.__init__ = init


def _answer_distributed() -> None:
    init_process_group = dist.init_process_group

    @functools.wraps(init_process_group)
    def init_with_gloo(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("device_id", None)
        init_process_group(_gloo(backend) or "gloo", *args, **kwargs)

    new_group = dist.new_group

    @functools.wraps(new_group)
    def new_gloo_group(
        ranks: Any = None,
        timeout: Any = None,
        backend: str | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        kwargs.pop("device_id", None)
        return new_group(ranks, timeout, _gloo(backend), *args, **kwargs)

    barrier = dist.barrier

    @functools.wraps(barrier)
    def barrier_without_devices(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_ids", None)
        return barrier(*args, **kwargs)

    for name, function in (
        ("init_process_group", init_with_gloo),
        ("new_group", new_gloo_group),
        ("barrier", barrier_without_devices),
        ("is_nccl_available", lambda: True),
    ):
        setattr(dist, name, function)
        setattr(distributed_c10d, name, function)

    ddp_init = DistributedDataParallel.__init__

    @functools.wraps(ddp_init)
    def init(
        ddp: Any,
        module: torch.nn.Module,
        device_ids: Any = None,
        output_device: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        ddp_init(ddp, module, None, None, *args, **kwargs)

    DistributedDataParallel.__init__ = init


def _gloo(backend: str | None) -> str | None:
    return "gloo" if backend is not None and "nccl" in backend else backend
