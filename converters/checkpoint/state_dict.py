"""State dict in memory."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from converters.checkpoint.dtypes import torch_dtype_name, torch_to_numpy
from converters.checkpoint.lazy import shared_keys
from converters.checkpoint.reader import Checkpoint, TensorInfo
from converters.errors import NotAStateDictError


class StateDict(Checkpoint):
    """Torch state dict in memory; entries that are not tensors are in `others`.

    Raises:
        NotAStateDictError: a tensor is not plain and dense, or not named by a string; or there are
            no tensors.
    """

    def __init__(self, source: str, tensors: Mapping[str, Any]) -> None:
        import torch

        self.source = source
        self._tensors: dict[str, Any] = {}
        others: dict[str, str] = {}
        for key, value in tensors.items():
            if isinstance(value, torch.Tensor):
                _require_plain_tensor(source, key, value)
                self._tensors[key] = value
            else:
                others[str(key)] = f"a {type(value).__name__}"
        if tensors and not self._tensors:
            raise NotAStateDictError(
                f"{source} holds no tensors by name", "pass model.state_dict()"
            )
        self.others = MappingProxyType(others)
        self.infos = {
            key: TensorInfo(tuple(tensor.shape), torch_dtype_name(tensor))
            for key, tensor in self._tensors.items()
        }
        self.shared = shared_keys({key: _identity(tensor) for key, tensor in self._tensors.items()})

    def read(self, key: str) -> np.ndarray[Any, Any]:
        """Return the tensor of this key. It shares memory with a contiguous tensor."""
        return torch_to_numpy(self._tensors[key], f"{self.source}: {key}")


def _identity(tensor: Any) -> Any:
    if not tensor.numel():
        return None
    sides = tuple(
        (side, step) for side, step in zip(tensor.shape, tensor.stride(), strict=True) if side > 1
    )
    flags = (tensor.is_conj(), tensor.is_neg())
    return (tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, sides, flags)


def _require_plain_tensor(source: str, key: Any, tensor: Any) -> None:
    import torch

    if not isinstance(key, str):
        form = "not named by a string"
    elif type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        form = f"a {type(tensor).__name__}"
    elif tensor.layout != torch.strided or tensor.is_nested:
        form = "a sparse or nested tensor"
    elif tensor.is_quantized:
        form = "a quantized tensor"
    elif tensor.device.type == "meta":
        form = "a tensor without data (meta device)"
    else:
        return
    raise NotAStateDictError(
        f"{source}: {key} is {form}, not a plain dense tensor",
        "convert it to a dense tensor before saving",
    )
