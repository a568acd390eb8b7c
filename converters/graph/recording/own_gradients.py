"""Functions with a gradient of their own (`torch.autograd.Function`), which a recording lacks."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


@contextmanager
def own_gradients_noted(names: dict[str, None]) -> Iterator[None]:
    """Record the user's functions that are applied in this context: "Round (net.py:12)".

    Args:
        names: receives the functions.
    """
    cls: Any = torch.autograd.Function
    before = cls.__dict__["apply"]
    apply = before.__func__

    def noting(function: Any, *args: Any, **kwargs: Any) -> Any:
        if not function.__module__.startswith("torch."):
            names.setdefault(_shown(function))
        return apply(function, *args, **kwargs)

    cls.apply = classmethod(noting)
    try:
        yield
    finally:
        cls.apply = before


def _shown(function: Any) -> str:
    try:
        file, line = inspect.getsourcefile(function), inspect.getsourcelines(function)[1]
    except (OSError, TypeError):
        return str(function.__qualname__)
    return f"{function.__qualname__} ({Path(file or '?').name}:{line})"
