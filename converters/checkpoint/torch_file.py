"""Reading what `torch.save` wrote (`.pt`, `.pth`, `.bin`, `.ckpt`; zip and legacy), without code.

Only `torch.load(weights_only=True)` is used: its unpickler builds tensors and plain containers and
stops at the first name of anything else. The zip form is mapped, so a tensor is read when used.
"""

from __future__ import annotations

import os
import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from converters.checkpoint.dtypes import torch_dtype_name, torch_to_numpy
from converters.checkpoint.reader import COPY_AGAIN, Checkpoint, TensorInfo
from converters.errors import (
    CheckpointDamagedError,
    CheckpointHoldsCodeError,
    MissingDependencyError,
    NotAStateDictError,
)

ZIP_MAGIC = b"PK\x03\x04"
PICKLE_MAGIC = b"\x80"

_SAVE_AGAIN = (
    "if you trust it, load it with the program that wrote it and save the weights alone: "
    'safetensors.torch.save_model(model, "model.safetensors")'
)
# torch's refusal names the offender so: "GLOBAL posix.system".
_OFFENDER = re.compile(r"GLOBAL (?P<name>[\w.]+)")


class StateDict(Checkpoint):
    """A torch state dict that is in memory, or mapped.

    Raises:
        NotAStateDictError: not a mapping of names to plain dense tensors.
    """

    def __init__(self, source: str, tensors: Mapping[str, Any]) -> None:
        self.source = source
        for key, tensor in tensors.items():
            _require_plain_tensor(source, key, tensor)
        self._tensors = dict(tensors)
        self.infos = {
            key: TensorInfo(tuple(tensor.shape), torch_dtype_name(tensor))
            for key, tensor in self._tensors.items()
        }

    def read(self, key: str) -> np.ndarray[Any, Any]:
        """The tensor of this key; it shares memory with the tensor where that is contiguous."""
        return torch_to_numpy(self._tensors[key], f"{self.source}: {key}")


def open_torch_file(path: Path, start: bytes, key: str | None) -> StateDict:
    """The state dict in a file of `torch.save`.

    Args:
        path: the file.
        start: its first bytes, which tell the zip form from the legacy one.
        key: the entry of a training checkpoint that holds the weights; None for a plain state dict.

    Raises:
        CheckpointHoldsCodeError: the pickle names code, or is a TorchScript archive.
        CheckpointDamagedError: truncated, or a pickle that torch did not write.
        NotAStateDictError: no state dict, or a training checkpoint and no (or a wrong) `key`.
        MissingDependencyError: torch is not installed.
    """
    # Newer torch (2.13) goes by this name, not by the content, unless it is given an open file.
    misnamed = path.suffix == ".safetensors"
    loaded = _load(path, mapped=start.startswith(ZIP_MAGIC) and not misnamed)
    return StateDict(str(path), _find_state_dict(path, loaded, key))


def _load(path: Path, *, mapped: bool) -> Any:
    try:
        import torch
    except ImportError:
        raise MissingDependencyError(
            f"{path} is a file of torch.save, and torch is not installed",
            'pip install "tpu-migrate[torch]"',
        ) from None
    with warnings.catch_warnings():
        # torch warns of what is refused below in our own words (foreign pickles, TorchScript).
        warnings.simplefilter("ignore")
        try:
            if mapped:
                return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            with path.open("rb") as file:
                return torch.load(file, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise _code_refusal(path, str(error)) from None
        except Exception as error:
            if "TorchScript" in str(error):
                raise CheckpointHoldsCodeError(
                    f"{path} is a TorchScript archive, which holds code: not read", _SAVE_AGAIN
                ) from None
            # A cut-off file fails wherever the cut happens to fall: EOFError, IndexError,
            # RuntimeError, …; there is no closed list.
            reason = str(error) or type(error).__name__
            raise CheckpointDamagedError(
                f"{path} is truncated or damaged ({reason[:160]})", COPY_AGAIN
            ) from None


def _code_refusal(path: Path, message: str) -> CheckpointHoldsCodeError | CheckpointDamagedError:
    offender = _OFFENDER.search(message)
    if offender and not _ends_with(path, offender["name"].rpartition(".")[2]):
        return CheckpointHoldsCodeError(
            f"{path} is a pickle that names {offender['name']}, which is not tensor data: "
            "nothing was executed",
            _SAVE_AGAIN,
        )
    return CheckpointDamagedError(
        f"{path} is truncated, or a pickle that torch.save did not write: nothing was executed",
        _SAVE_AGAIN,
    )


def _ends_with(path: Path, name: str) -> bool:
    """Whether the file ends within this name: then it was cut off there, not made with it."""
    with path.open("rb") as file:
        file.seek(-min(256, path.stat().st_size), os.SEEK_END)
        return file.read().rpartition(b"\n")[2].startswith(name.encode())


def _find_state_dict(path: Path, loaded: Any, key: str | None) -> Mapping[str, Any]:
    if not isinstance(loaded, Mapping):
        raise NotAStateDictError(
            f"{path} holds a {type(loaded).__name__}, not a state dict",
            "save model.state_dict()",
        )
    nested = [name for name, value in loaded.items() if _is_state_dict(value)]
    choice = ", ".join(f'key="{name}"' for name in nested)
    if key is not None:
        if key not in nested:
            raise NotAStateDictError(
                f'{path} has no state dict under "{key}"',
                f"choose {choice}" if nested else "leave the key out",
            )
        found: Mapping[str, Any] = loaded[key]
        return found
    if _is_state_dict(loaded):
        return loaded
    if nested:
        raise NotAStateDictError(
            f"{path} is a training checkpoint, with state dicts inside", f"choose {choice}"
        )
    if any(isinstance(name, str) and _is_tensor(value) for name, value in loaded.items()):
        return loaded  # StateDict names the entry that does not belong there
    raise NotAStateDictError(
        f"{path} holds a dict without tensors by name, not a state dict", "save model.state_dict()"
    )


def _is_state_dict(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(name, str) for name in value)
        and all(_is_tensor(tensor) for tensor in value.values())
    )


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


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
