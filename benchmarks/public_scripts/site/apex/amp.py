"""`apex.amp` without mixed precision: nothing is scaled, and autocast of the GPU says that it is on.

A run on the CPU computes in float32. A proof, which switches autocast off, compares what was meant.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


def initialize(
    models: Any,
    optimizers: Any = None,
    enabled: bool = True,
    opt_level: str = "O1",
    **options: Any,
) -> Any:
    if enabled and opt_level != "O0":
        torch.set_autocast_dtype("cuda", torch.float16)
        torch.set_autocast_enabled("cuda", True)
    return models if optimizers is None else (models, optimizers)


@contextlib.contextmanager
def scale_loss(loss: Any, optimizers: Any, **options: Any) -> Iterator[Any]:
    yield loss
