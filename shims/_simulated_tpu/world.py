"""Hosts and ranks as torch_tpu sees them: a host with N chips, and one chip in each process."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import torch
from torch_tpu._internal.utils import hardware

_WORLD = "WORLD_SIZE"
_C: Any = ctypes.CDLL(None)
_state = {"warm": False}


def answer(count: int) -> None:
    """Let torch_tpu find a host of `count` chips, instead of asking the PCI bus."""
    table = hardware._V5P_TOPOLOGY

    def get_tpu_device_count() -> int:
        return count

    def get_tpu_topology(world_size: int | None = None) -> str:
        size = count if world_size is None else world_size
        if size not in table:
            # torch_tpu's words on a TPU.
            raise RuntimeError(f"No TPU topology found for count: {size}")
        return table[size]

    hardware.get_tpu_device_count = get_tpu_device_count
    hardware.get_tpu_topology = get_tpu_topology


def hide_from_compiler() -> None:
    """Let torch_tpu's C++ layer compile for one device, whatever the number of ranks.

    With WORLD_SIZE above 1 it compiles each operator for that many partitions, which one CPU device
    cannot run. The C++ layer reads the variable once, at its first operator. That operator runs here
    while the variable is unset in C only, before the variable is set.
    """
    if _WORLD in os.environ:
        _warm_up()
        return
    set_variable = os.putenv

    def putenv(name: Any, value: Any, /) -> None:
        if os.fsdecode(name) == _WORLD:
            _warm_up()
        set_variable(name, value)

    os.putenv = putenv  # os.environ calls it


def _warm_up() -> None:
    if _state["warm"]:
        return
    _state["warm"] = True
    value = os.environ.get(_WORLD)
    _C.unsetenv(_WORLD.encode())
    try:
        torch.zeros(1, device="tpu").cpu()
    finally:
        if value is not None:
            _C.setenv(_WORLD.encode(), value.encode(), 1)
