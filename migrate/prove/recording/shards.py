"""Tensors that a process group holds in parts."""

from __future__ import annotations

import sys
from typing import Any


def local(value: Any) -> Any:
    """Return this rank's part of a DTensor, and any other value as it is.

    A rank of FSDP2 or of tensor parallelism holds its shard of each parameter. What a DTensor computes may
    need all ranks, and an observer must not call collectives. Both sides of a proof shard alike, so their
    parts are compared rank by rank.

    Args:
        value: a tensor of any kind, or any other value.

    Returns:
        The local tensor, detached, without a collective. The sum of a partial result is not computed.
    """
    library = sys.modules.get("torch.distributed.tensor")
    if library is not None and isinstance(value, library.DTensor):
        return value.detach().to_local()
    return value
