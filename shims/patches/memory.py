"""Memory figures of `torch.cuda`: measured values of the process and the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from shims.errors import DeviceNotAnsweredError
from shims.patches import calls
from shims.patches.devices import Devices
from shims.patches.registry import Patch, patch
from shims.tpu import tpu_device_files

_STATUS = Path("/proc/self/status")
_KIBIBYTE = 1024
# Library of a TPU -> its own figures, which no patch answers.
_OF_THE_TPU = {
    "torch_xla": "torch_xla.core.xla_model.get_memory_info()",
    "torch_tpu": "torch.accelerator.get_memory_info()",
}


def _of_process(field: str) -> int:
    return _figure(_STATUS, field)


def _of_machine(field: str) -> int:
    return _figure(Path("/proc/meminfo"), field)


def _figure(file: Path, field: str) -> int:
    library = next((name for name in _OF_THE_TPU if name in sys.modules), None)
    if library is not None and tpu_device_files():
        raise DeviceNotAnsweredError(
            f"a memory figure requested at {calls.user_line()}: the host's is not the TPU's",
            f"{_OF_THE_TPU[library]} reports the TPU's",
            "cuda-memory",
        )
    try:
        for line in file.read_text().splitlines():
            name, _, value = line.partition(":")
            if name == field:
                return int(value.split()[0]) * _KIBIBYTE
    except OSError:
        pass
    raise DeviceNotAnsweredError(
        f"a memory figure requested at {calls.user_line()} has no answer: {file} has no {field}",
        "use Linux or a GPU, or remove the figure",
        "cuda-memory",
    )


def allocated(device: Any = None) -> int:
    """Return the resident memory of this process in bytes: its tensors and everything else."""
    return _of_process("VmRSS")


def peak(device: Any = None) -> int:
    """Return the peak of the resident memory in bytes since the last reset."""
    return _of_process("VmHWM")


def reset_peak(device: Any = None) -> None:
    """Reset the peak, which Linux records."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError as error:
        raise DeviceNotAnsweredError(
            f"torch.cuda.reset_peak_memory_stats at {calls.user_line()}: {error}",
            "remove the reset: the peak then counts from the start of the process",
            "cuda-memory",
        ) from error


def total() -> int:
    """Return the machine's memory in bytes."""
    return _of_machine("MemTotal")


def free_and_total(device: Any = None) -> tuple[int, int]:
    """Return the machine's available memory and its total memory, in bytes."""
    return _of_machine("MemAvailable"), total()


class _Stats(dict[str, int]):
    """Result of `torch.cuda.memory_stats()`: the figures measured by the system; other keys are refused."""

    def __missing__(self, key: str) -> int:
        raise DeviceNotAnsweredError(
            f"torch.cuda.memory_stats()[{key!r}] at {calls.user_line()} has no answer here",
            f"only {', '.join(self)} are measured",
            "cuda-memory",
        )


def stats(device: Any = None) -> dict[str, int]:
    """Return the figures above under torch's keys."""
    figures = {"all.current": allocated(), "all.peak": peak()}
    return _Stats(
        {
            f"{kind}_bytes.{key}": value
            for kind in ("allocated", "reserved", "active")
            for key, value in figures.items()
        }
    )


def summary(device: Any = None, abbreviated: bool = False) -> str:
    """Return the figures above as text."""
    free, size = free_and_total()
    return (
        f"resident memory of the process: {allocated()} bytes, peak {peak()} bytes; "
        f"of the machine: {free} of {size} bytes available"
    )


_FUNCTIONS: tuple[tuple[tuple[str, ...], Callable[..., Any], str], ...] = (
    (
        ("memory_allocated", "memory_reserved", "memory_cached", "device_memory_used"),
        allocated,
        "the process's resident memory",
    ),
    (
        ("max_memory_allocated", "max_memory_reserved", "max_memory_cached"),
        peak,
        "the peak of the process's resident memory",
    ),
    (
        ("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached"),
        reset_peak,
        "starts the peak of resident memory anew",
    ),
    (("mem_get_info",), free_and_total, "the machine's memory: available, all"),
    (("memory_stats",), stats, "the process's resident memory; other keys are refused"),
    (("memory_summary",), summary, "the process's resident memory, as text"),
    (
        ("empty_cache", "ipc_collect"),
        lambda: None,
        "nothing to do: freed memory is not kept",
    ),
    (
        ("set_per_process_memory_fraction",),
        lambda fraction, device=None: None,
        "nothing to do: no limit is set",
    ),
)


def patches(devices: Devices) -> Iterator[Patch]:
    """Yield the memory patches in `torch.cuda`, `torch.cuda.memory` and `torch.accelerator`."""
    for names, function, answers in _FUNCTIONS:
        for name in names:
            for module in (torch.cuda, torch.cuda.memory, getattr(torch, "accelerator", None)):
                if module is not None and hasattr(module, name):
                    yield patch(module, name, _on_a_device(devices, function), answers)


def _on_a_device(devices: Devices, function: Callable[..., Any]) -> Callable[..., Any]:
    def answer(*args: Any, **kwargs: Any) -> Any:
        for device in (*args, kwargs.get("device")):
            if device is not None and not isinstance(device, float):
                devices.index(device)
        return function(*args, **kwargs)

    return answer
