"""transformers' masks by broadcasting: a recorded torch.vmap leaves no side free."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def broadcast_masks() -> Iterator[None]:
    """Build masks from all indices at once, where that equals building them one index at a time.

    Whether it does is checked when the model runs before it is recorded.
    """
    masking: Any = sys.modules.get("transformers.masking_utils")
    table: Any = getattr(getattr(masking, "AttentionMaskInterface", None), "_global_mapping", None)
    usual: Any = table.get("sdpa") if isinstance(table, dict) else None
    if usual is None:
        yield
        return
    differ: list[Any] = []

    @functools.wraps(usual)
    def sdpa_mask(*args: Any, use_vmap: bool = False, **named: Any) -> Any:
        if use_vmap and not differ:
            if torch.compiler.is_exporting() or torch.compiler.is_compiling():
                return usual(*args, use_vmap=False, **named)
            wanted = usual(*args, use_vmap=True, **named)
            if not _agrees(usual, args, named, wanted):
                differ.append(named)
            return wanted
        return usual(*args, use_vmap=use_vmap, **named)

    table["sdpa"] = sdpa_mask
    try:
        yield
    finally:
        table["sdpa"] = usual


def _agrees(usual: Any, args: Any, named: Any, wanted: Any) -> bool:
    try:
        broadcast = usual(*args, use_vmap=False, **named)
    except (RuntimeError, IndexError, TypeError, ValueError):
        return False
    if broadcast is None or wanted is None:
        return broadcast is wanted
    return torch.equal(broadcast, wanted)
