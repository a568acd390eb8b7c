"""Weights of a torch model in a file, and weights of a file in the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from migrate.parity.ground.errors import ParityError

_SHOWN = 3


def save(module: nn.Module, file: Path) -> None:
    """Write the state dict as safetensors; tied weights under each of their names."""
    from safetensors.torch import save_file

    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: tensor.cpu().clone().contiguous() for name, tensor in _state(module).items()}, file
    )


def save_computed(module: nn.Module, file: Path) -> int:
    """Write the buffers that the state dict leaves out (non-persistent ones); return their number."""
    from safetensors.torch import save_file

    saved = set(module.state_dict())
    buffers = {
        name: buffer.cpu().clone().contiguous()
        for name, buffer in module.named_buffers(remove_duplicate=False)
        if name not in saved
    }
    save_file(buffers, file)
    return len(buffers)


def load(module: nn.Module, file: Path, shown: str) -> None:
    """Copy the weights of a file into the model.

    A name may be missing if it is tied to a present name, or counts the batches of a BatchNorm, which
    affects nothing.

    Raises:
        ParityError: the weights do not fit, or the file cannot be read.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        new = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ParityError(f"{file}: {error}", "give a safetensors file of the model") from error
    have = _state(module)
    there = {_place(have[name]) for name in new if name in have}
    missing = [
        name
        for name, tensor in have.items()
        if name not in new
        and _place(tensor) not in there
        and not name.endswith("num_batches_tracked")
    ]
    surplus = [name for name in new if name not in have]
    misshapen = [
        f"{name} ({_shape(new[name])} for {_shape(have[name])})"
        for name in new
        if name in have and new[name].shape != have[name].shape
    ]
    differences = [
        f"{len(names)} {what}: {', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''}"
        for what, names in (("missing", missing), ("surplus", surplus), ("misshapen", misshapen))
        if names
    ]
    if differences:
        raise ParityError(
            f"{shown}: the weights of {file} do not fit ({'; '.join(differences)})",
            "pass weights of this model, with its own names",
        )
    with torch.no_grad():
        for name, tensor in new.items():
            have[name].copy_(tensor)


def _state(module: nn.Module) -> dict[str, Any]:
    """Tensors of the state dict; they are the model's own."""
    return {
        name: value.detach()
        for name, value in module.state_dict(keep_vars=True).items()
        if isinstance(value, torch.Tensor)
    }


def _place(tensor: Any) -> tuple[Any, ...]:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()


def _shape(tensor: Any) -> Sequence[int]:
    return list(tensor.shape)
