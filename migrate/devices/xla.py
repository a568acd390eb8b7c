"""Chips that torch_xla sees, one after the other: its programs are compiled for one device each."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch_xla
import torch_xla.backends
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

from migrate.devices.programs import ChipJob
from migrate.devices.report import Chip

Array = np.ndarray[Any, Any]


class TorchXlaChips:
    """See `probe.Chips`."""

    left_out: Mapping[str, str] = {
        "all-reduce": "torch_xla has a process for each chip there; it is probed where JAX sees the chips"
    }

    def __init__(self) -> None:
        self.runtime = f"torch_xla {torch_xla.__version__}"
        self.platform = xr.device_type().lower()
        self._devices = {
            number: torch_xla.device(number) for number in range(xr.addressable_device_count())
        }
        self.chips = tuple(
            Chip(number, xm.xla_device_hw(device), str(device), platform.node())
            for number, device in self._devices.items()
        )

    def prepared(self, job: ChipJob) -> Callable[[], dict[int, Callable[[], Array]]]:
        """See `probe.Chips`."""
        torch_xla.backends.set_mat_mul_precision("highest" if job.highest else "default")
        tensors = [_tensor(array) for array in job.inputs]
        placed = {
            number: [tensor.to(device) for tensor in tensors]
            for number, device in self._devices.items()
        }
        compute = _softmax if job.kind == "softmax" else _matmul

        def launch() -> dict[int, Callable[[], Array]]:
            return {
                number: functools.partial(_take, compute(*inputs))
                for number, inputs in placed.items()
            }

        return launch


def _softmax(scores: Any) -> Any:
    return torch.softmax(scores, -1)


def _matmul(a: Any, b: Any) -> Any:
    if a.dtype == torch.int8:
        return torch.matmul(a.to(torch.int32), b.to(torch.int32))
    return torch.matmul(a, b)


def _tensor(array: Array) -> Any:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _take(tensor: Any) -> Array:
    here = tensor.cpu()
    if here.dtype == torch.bfloat16:
        return here.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return np.asarray(here.numpy())
