"""Assembly of the patches of all concerns for one target."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shims.patches import (
    amp,
    calls,
    compiling,
    cuda,
    memory,
    modules,
    rng,
    serialization,
    streams,
    tensors,
)
from shims.patches.devices import DevicePlacement, Devices, HostPlacement
from shims.patches.mode import EveryThread
from shims.patches.ranks import batchnorm, distributed, one_process
from shims.patches.registry import Patch, Registry


def install(target: str, count: int) -> tuple[Registry, EveryThread]:
    """Install all patches; see `shims.patches.install`."""
    registry = Registry()
    handles: list[Any] = []
    if target == "xla":
        from shims.patches import xla

        devices = Devices(count, DevicePlacement(target))
        generators: Any = xla.XlaGenerator(devices)
        registry.install(xla.patches(devices))
        finish = xla.finish
        handles += xla.hooks()
    elif target == "tpu":
        from shims.patches import tpu

        devices = Devices(count, DevicePlacement(target))
        generators = tpu.TpuGenerator(devices)
        registry.install(tpu.patches())
        finish = tpu.finish
    else:
        devices = Devices(count, HostPlacement())
        generators = rng.HostGenerators(devices)
        finish = _nothing_pending
    threads = EveryThread(devices, generators, handles)
    registry.install(all_patches(devices, generators, finish))
    answered = {
        item.attribute for item in registry.installed() if item.name.startswith("torch.cuda.")
    }
    registry.install(cuda.refusals(answered))
    registry.install(threads.patches())
    threads.enter()
    calls.report_at_exit()
    return registry, threads


def _nothing_pending() -> None:
    """Do nothing: on the CPU, work is complete when a call returns."""


def all_patches(devices: Devices, generators: Any, finish: Any) -> Iterator[Patch]:
    """Yield all patches in the order of their installation; the arguments are those of
    `shims.patches.cuda`."""
    yield from streams.patches(devices, finish)
    yield from memory.patches(devices)
    yield from rng.patches(devices, generators)
    yield from cuda.patches(devices, finish)
    yield from tensors.patches(devices)
    yield from modules.patches(devices)
    yield from serialization.patches(devices)
    yield from amp.patches(devices)
    yield from compiling.patches()
    yield from distributed.patches(devices)
    yield from one_process.patches(devices)
    yield from batchnorm.patches()
