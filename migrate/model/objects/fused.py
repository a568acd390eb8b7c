"""Optimizers of a project whose step is a CUDA kernel: `AdamW(…, fused=True)`."""

from __future__ import annotations

import ast
from functools import lru_cache

from migrate.catalogue.words import TORCH_OPTIMIZER
from migrate.model.calls.analysis import Analysis


@lru_cache(maxsize=2)
def makes_fused(analysis: Analysis) -> bool:
    """Return whether a file of a project makes a torch optimizer with `fused` possibly on."""
    for top in analysis.scopes.values():
        if b"fused" not in top.module.data:
            continue
        for call, scope in analysis.calls_in(top):
            if any(
                keyword.arg == "fused" and not _is_off(keyword.value) for keyword in call.keywords
            ):
                makers = analysis.evaluator.externals(call.func, scope)
                if any(TORCH_OPTIMIZER.fullmatch(name) for name in makers):
                    return True
    return False


def _is_off(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and not value.value
