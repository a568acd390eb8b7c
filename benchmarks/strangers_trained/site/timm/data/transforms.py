"""Interpolation by name."""

from __future__ import annotations

from typing import Any


def _pil_interp(method: str) -> Any:
    from torchvision.transforms import InterpolationMode

    return InterpolationMode(method)
