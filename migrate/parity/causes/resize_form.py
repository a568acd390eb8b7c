"""How an image is resized."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Scene

_FORMS: dict[str, dict[str, Any]] = {
    "nearest": {"mode": "nearest", "align_corners": None},
    "nearest-exact (half pixels)": {"mode": "nearest-exact", "align_corners": None},
    "bilinear": {"mode": "bilinear", "align_corners": False},
    "bilinear with align_corners": {"mode": "bilinear", "align_corners": True},
    "bilinear with antialias": {"mode": "bilinear", "align_corners": False, "antialias": True},
    "bicubic": {"mode": "bicubic", "align_corners": False},
    "bicubic with align_corners": {"mode": "bicubic", "align_corners": True},
    "bicubic with antialias": {"mode": "bicubic", "align_corners": False, "antialias": True},
}


class _Truth(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate(x, (5, 5), mode="bilinear")


class _Faulty(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate(x, (5, 5), mode="bilinear", antialias=True)


class ResizeForm(Pattern):
    """An image is resized in another way.

    **What it is.** `jax.image.resize` antialiases when it makes an image smaller, torch's `interpolate`
    does not unless told; torch's "nearest" takes the pixel at the left edge, JAX's the one in the middle
    ("nearest-exact"); `align_corners=True` maps corners to corners, which JAX has not; cubic kernels have
    a = -0.75 in torch and -0.5 in JAX and with antialias.

    **What to do.** `jax.image.resize(..., antialias=False)`; `mode="nearest-exact"` in torch;
    `jax.image.scale_and_translate` for aligned corners.
    """

    name = "resize-form"
    rank = 0
    examples = (
        Example(
            _Truth, lambda twin: _Faulty(), normal(2, 3, 8, 8), "resizes bilinear with antialias"
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield all forms; and grid_sample with the other corners."""
        for form, options in _FORMS.items():
            for where, change in scene.replaced(partial(_resized, options)):
                yield Variant(f"{{side}} resizes {form}{where}", change)
        for where, change in scene.replaced(lambda: {"grid_sample": _other_corners}):
            yield Variant(f"{{side}} samples with the other align_corners{where}", change)


def _resized(options: Mapping[str, Any]) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        given = {"size": call.get(1, "size"), "scale_factor": call.get(2, "scale_factor")}
        return nn.functional.interpolate(call.args[0], **given, **options)

    return {"interpolate": handle}


def _other_corners(call: FunctionCall) -> Any:
    return call.but(4, "align_corners", not call.get(4, "align_corners", False)).run()
