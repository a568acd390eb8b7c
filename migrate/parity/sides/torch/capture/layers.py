"""Description of a torch module: its class, its own weights, and the settings of its computation."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from migrate.parity.dump.dump import Layer
from migrate.parity.sides import frames

# Attributes that do not affect the computation in eval().
_IDLE = frozenset(
    {
        "T_destination",
        "call_super_init",
        "dump_patches",
        "gradient_checkpointing",
        "inplace",
        "layer_idx",
        "name_or_path",
        "training",
        "warnings_issued",
    }
)


def layers(model: nn.Module, met: Mapping[str, tuple[str | None, str]]) -> list[Layer]:
    """Return every module of the model, in the order of its tree.

    Args:
        met: for called modules, the layer in whose forward pass the first call was, and the line of that
            call. Other modules are below the module that holds them.
    """
    descriptions = []
    for name, module in model.named_modules():
        parent, called = met.get(name, (name.rpartition(".")[0], ""))
        descriptions.append(
            Layer(
                name,
                type(module).__name__,
                _weights(name, module),
                _settings(module, root=not name),
                frames.defined(module.forward),
                called,
                parent if name else None,
            )
        )
    return descriptions


def _weights(name: str, module: nn.Module) -> tuple[str, ...]:
    """Names in the state dict of the module's own weights."""
    transient = module._non_persistent_buffers_set
    own = [key for key, value in module._parameters.items() if value is not None]
    own += [
        key for key, value in module._buffers.items() if value is not None and key not in transient
    ]
    return tuple(f"{name}.{key}" if name else key for key in own)


def _settings(module: nn.Module, *, root: bool) -> dict[str, Any]:
    settings = {
        key: plain
        for key, value in vars(module).items()
        if not key.startswith("_")
        and key not in _IDLE
        and (plain := _plain(value)) is not _NOT_PLAIN
    }
    config: Any = getattr(module, "config", None)
    if root and hasattr(config, "to_dict"):
        values = config.to_dict()
        settings |= {
            f"config.{key}": plain
            for key, value in values.items()
            if not key.startswith("_") and (plain := _plain(value)) is not _NOT_PLAIN
        }
    return settings


_NOT_PLAIN = object()


def _plain(value: Any) -> Any:
    """Convert a value for JSON, functions by their name; `_NOT_PLAIN` for all others."""
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, torch.dtype | torch.device | enum.Enum):
        return str(value)
    if isinstance(value, tuple | list):
        items = [_plain(item) for item in value]
        return _NOT_PLAIN if any(item is _NOT_PLAIN for item in items) else tuple(items)
    if callable(value) and not isinstance(value, nn.Module) and hasattr(value, "__name__"):
        return value.__name__
    return _NOT_PLAIN
