"""Patches of `torch.cuda` and `torch.accelerator`: devices, properties, nvtx, and refusals."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from shims.errors import DeviceNotAnsweredError
from shims.patches import calls, memory
from shims.patches.devices import Devices
from shims.patches.registry import Patch, patch

# Scripts read the capability to decide whether to use bfloat16 and TF32. Both may be used, and 8.0
# is the first capability with both.
CAPABILITY = (8, 0)

# Names of torch.cuda that stay unpatched, because they query no device.
_UNTOUCHED = frozenset(
    {"CudaError", "DeferredCudaCallError", "amp", "cudaStatus", "default_generators", "graphs"}
    | {"has_half", "has_magma", "memory", "nccl", "nvtx", "profiler", "random", "sparse"}
    | {"streams", "tunable", "init", "is_initialized", "is_tf32_supported"}
)


def patches(devices: Devices, finish: Callable[[], None]) -> Iterator[Patch]:
    """Yield the patches of the functions of `torch.cuda` that concern devices.

    Args:
        devices: the CUDA devices reported to the program.
        finish: waits until the device has finished earlier work.
    """
    answers = {**_choice(devices, finish), **_properties(devices)}
    for name, (function, text) in answers.items():
        yield patch(torch.cuda, name, function, text)
    # Otherwise the first call would look for a driver.
    yield patch(torch.cuda, "_initialized", True, "there is no driver to start")
    yield from _nvtx()
    yield from _accelerator(devices, finish)


def _choice(devices: Devices, finish: Callable[[], None]) -> dict[str, tuple[Any, str]]:
    class device:  # noqa: N801 - the name that it answers for
        """`torch.cuda.device`: context that makes a device the current one."""

        def __init__(self, device: Any) -> None:
            self.idx = devices.index(device)

        def __enter__(self) -> None:
            self.prev_idx = devices.current
            devices.current = self.idx

        def __exit__(self, *exc_info: object) -> None:
            devices.current = self.prev_idx

    class device_of(device):  # noqa: N801 - the name that it answers for
        """`torch.cuda.device_of`: context that makes a tensor's device the current one."""

        def __init__(self, obj: Any) -> None:
            super().__init__(None)

    def set_device(device: Any) -> None:
        devices.current = device

    def synchronize(device: Any = None) -> None:
        devices.index(device)
        finish()

    where = f"work runs on {devices.placement.target}"
    return {
        "is_available": (lambda: True, where),
        "device_count": (lambda: devices.count, "the number of ranks"),
        "current_device": (lambda: devices.current, "the number that set_device was given"),
        "set_device": (set_device, "remembered; all devices are one"),
        "device": (device, "remembered; all devices are one"),
        "device_of": (device_of, "remembered; all devices are one"),
        "synchronize": (synchronize, "waits for the work"),
        # Adam and other optimizers call this at each step if there is CUDA.
        "is_current_stream_capturing": (lambda: False, "there are no graphs"),
        "is_bf16_supported": (lambda including_emulation=True: True, "yes"),
        "can_device_access_peer": (lambda device, peer: True, "the devices share their memory"),
        "get_sync_debug_mode": (lambda: 0, "off"),
        "set_sync_debug_mode": (lambda mode: None, "nothing to do"),
    }


def _properties(devices: Devices) -> dict[str, tuple[Any, str]]:
    def on_device(function: Callable[[], Any]) -> Callable[..., Any]:
        def answer(device: Any = None) -> Any:
            devices.index(device)
            return function()

        return answer

    name = f"{_processor()} (as CUDA, {devices.placement.target})"
    return {
        "get_device_name": (on_device(lambda: name), "the processor's name"),
        "get_device_capability": (
            on_device(lambda: CAPABILITY),
            "(8, 0): bfloat16 and TF32 are supported",
        ),
        "get_device_properties": (
            on_device(lambda: _Properties(name)),
            "name, capability 8.0, the machine's memory and cores; the rest is refused",
        ),
    }


class _Properties(SimpleNamespace):
    """Result of `torch.cuda.get_device_properties()`: true values of the machine; the others are refused."""

    def __init__(self, name: str) -> None:
        super().__init__(
            name=name,
            major=CAPABILITY[0],
            minor=CAPABILITY[1],
            total_memory=memory.total(),
            multi_processor_count=os.cpu_count() or 1,
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise refusal(f"torch.cuda.get_device_properties().{name}", "a property of GPUs only")


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _nvtx() -> Iterator[Patch]:
    open_ranges: list[str] = []
    numbers = itertools.count(1)

    def range_push(msg: str) -> int:
        open_ranges.append(msg)
        return len(open_ranges) - 1

    def range_pop() -> int:
        if open_ranges:
            open_ranges.pop()
        return len(open_ranges)

    @contextlib.contextmanager
    def nvtx_range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:
        range_push(msg.format(*args, **kwargs))
        try:
            yield
        finally:
            range_pop()

    functions: dict[str, Callable[..., Any]] = {
        "range_push": range_push,
        "range_pop": range_pop,
        "range": nvtx_range,
        "range_start": lambda msg: next(numbers),
        "range_end": lambda range_id: None,
        "mark": lambda msg: None,
    }
    for name, function in functions.items():
        yield patch(torch.cuda.nvtx, name, function, "no profiler reads the ranges")
    for name in ("start", "stop"):
        yield patch(torch.cuda.profiler, name, lambda: None, "no CUDA profiler listens")
    yield patch(torch.cuda, "cudart", _Cudart, "the profiler's start and stop; the rest is refused")


class _Cudart:
    """Result of `torch.cuda.cudart()`: the profiler's start and stop do nothing; the rest is refused."""

    def cudaProfilerStart(self) -> int:  # noqa: N802 - CUDA's name
        """Do nothing: no CUDA profiler listens."""
        return 0

    def cudaProfilerStop(self) -> int:  # noqa: N802 - CUDA's name
        """Do nothing: no CUDA profiler listens."""
        return 0

    def __getattr__(self, name: str) -> Any:
        raise refusal(f"torch.cuda.cudart().{name}", "code that calls CUDA itself needs a GPU")


def _accelerator(devices: Devices, finish: Callable[[], None]) -> Iterator[Patch]:
    accelerator: Any = getattr(torch, "accelerator", None)
    if accelerator is None:
        return

    def set_device(device: Any) -> None:
        devices.current = device

    functions: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "device_count": lambda: devices.count,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": lambda: devices.current,
        "current_device_idx": lambda: devices.current,
        "set_device_index": set_device,
        "set_device_idx": set_device,
        "device_index": torch.cuda.device,
        "synchronize": lambda device=None: finish(),
        "current_stream": lambda device=None: torch.cuda.current_stream(device),
        "set_stream": lambda stream: torch.cuda.set_stream(stream),
    }
    for name, function in functions.items():
        if hasattr(accelerator, name):
            yield patch(accelerator, name, function, "as torch.cuda")


def refusal(what: str, remedy: str, rule: str = "") -> DeviceNotAnsweredError:
    """Return the error for a call without a correct answer here, with the program's line.

    Args:
        what: the call.
        remedy: the code to write instead.
        rule: the rule of `migrate rewrite` for the call.
    """
    line = calls.user_line()
    return DeviceNotAnsweredError(
        f"{what}{f' at {line}' if line else ''} has no answer here", remedy, rule
    )


_REMEDIES = {
    "graph": "run the steps without a CUDA graph",
    "CUDAGraph": "run the steps without a CUDA graph",
    "make_graphed_callables": "call the functions themselves",
    "graph_pool_handle": "run the steps without a CUDA graph",
    "ExternalStream": "code that shares streams with CUDA libraries needs a GPU",
    "jiterator": "write the kernel as torch operations",
}


def refusals(answered: set[str]) -> Iterator[Patch]:
    """Yield refusals for every other name of `torch.cuda`: they neither start a driver nor return a
    silent 0.

    Args:
        answered: the names of `torch.cuda` that have an answer.
    """
    for name in sorted(set(torch.cuda.__all__) - answered - _UNTOUCHED):
        if not callable(getattr(torch.cuda, name, None)) or name.endswith("Storage"):
            continue
        yield patch(torch.cuda, name, _refusing(name), "refused: there is no correct answer")


# Prefixes of `torch.cuda` names, and the rule of `migrate rewrite` for each; other names are
# reported as left over. tests/shims/test_names.py compares this with the rules of `migrate`.
_RULES = {
    "ExternalStream": "cuda-streams",
    "caching_allocator_enable": "cuda-memory",
    "change_current_allocator": "cuda-memory",
    "clock": "cuda-memory",
    "get_per_process": "cuda-memory",
    "host_memory": "cuda-memory",
    "list_gpu": "cuda-memory",
    "mem_get": "cuda-memory",
    "memory": "cuda-memory",
    "power": "cuda-memory",
    "reset_": "cuda-memory",
    "temperature": "cuda-memory",
    "utilization": "cuda-memory",
}


def _refusing(name: str) -> Callable[..., Any]:
    remedy = _REMEDIES.get(name, "remove the call, or guard it with a flag of the program")
    rule = next((rule for start, rule in _RULES.items() if name.startswith(start)), "")

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise refusal(f"torch.cuda.{name}", remedy, rule)

    if isinstance(getattr(torch.cuda, name, None), type):
        # Annotations name classes: `torch.cuda.CUDAGraph | None` must stay a type.
        return type(name, (), {"__new__": refuse, "__module__": "torch.cuda"})
    return refuse
