"""Autocast regions of a project that compute in 16 bits on XLA."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from migrate.catalogue import torch_cuda
from migrate.catalogue.entry import names
from migrate.catalogue.torch_other import TYPED_AUTOCAST
from migrate.model.calls.analysis import Analysis

TYPED = names(*TYPED_AUTOCAST)
AUTOCASTS = names(*torch_cuda.AUTOCAST) | TYPED | {"shims.autocast"}
# Devices whose regions do not belong to the script's accelerator.
OTHERS = ("cpu", "mps", "xpu")
FLOAT32 = frozenset({"torch.float32", "torch.float"})


@lru_cache(maxsize=2)
def narrow_regions(analysis: Analysis) -> tuple[tuple[Path, int], ...]:
    """Return the files and lines of the autocast regions of a project that are not surely switched off."""
    return tuple(_regions(analysis))


def _regions(analysis: Analysis) -> Iterator[tuple[Path, int]]:
    evaluator = analysis.evaluator
    for top in analysis.scopes.values():
        if b"autocast" not in top.module.data:
            continue
        for call, scope in analysis.calls_in(top):
            autocasts = evaluator.externals(call.func, scope) & AUTOCASTS
            if not autocasts:
                continue
            arguments = {keyword.arg: keyword.value for keyword in call.keywords}
            first = (
                call.args[0] if call.args and autocasts & TYPED else arguments.get("device_type")
            )
            device = first.value if isinstance(first, ast.Constant) else None
            enabled = arguments.get("enabled")
            off = isinstance(enabled, ast.Constant) and enabled.value is False
            wide = "dtype" in arguments and evaluator.externals(arguments["dtype"], scope) & FLOAT32
            if not off and not wide and str(device).partition(":")[0] not in OTHERS:
                yield top.module.path, call.lineno
