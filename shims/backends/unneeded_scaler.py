"""A gradient scaler for devices that compute in bfloat16, which needs none."""

from __future__ import annotations

from typing import Any

import torch


class UnneededScaler(torch.amp.GradScaler):
    """Gradient scaler that scales nothing and passes on the scaler state of a CUDA checkpoint.

    Args:
        options: the options of torch.amp.GradScaler.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__("cpu", **{**options, "enabled": False})
        self._state: dict[str, Any] = torch.amp.GradScaler("cpu", **options).state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Return a state that a CUDA scaler can load."""
        return dict(self._state)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state for the next checkpoint."""
        self._state = dict(state_dict)
