"""torch's attention layer by layer, for whoever looks at the modules inside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def slow_paths() -> Iterator[None]:
    """torch's attention in one operator, which leaves the layers' modules out, is not taken in here."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
