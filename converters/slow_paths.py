"""torch's attention layer by layer, for callers that observe the inner modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def slow_paths() -> Iterator[None]:
    """Context without torch's fused attention operator, which skips the layers' modules."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
