"""`apex.amp` at its level O0: float32, nothing is scaled."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


def initialize(models: Any, optimizers: Any = None, **options: Any) -> Any:
    return models if optimizers is None else (models, optimizers)


@contextlib.contextmanager
def scale_loss(loss: Any, optimizers: Any, **options: Any) -> Iterator[Any]:
    yield loss
