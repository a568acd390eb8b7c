"""Change a module for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

_ABSENT = object()


@contextmanager
def attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute of an object, or of a Python module."""
    inside = vars(owner).get(name, _ABSENT)
    object.__setattr__(owner, name, value) if isinstance(owner, nn.Module) else setattr(
        owner, name, value
    )
    try:
        yield
    finally:
        if inside is _ABSENT:
            object.__delattr__(owner, name)
        elif isinstance(owner, nn.Module):
            object.__setattr__(owner, name, inside)
        else:
            setattr(owner, name, inside)


@contextmanager
def weight(
    module: nn.Module, name: str, change: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[None]:
    """Change a parameter or buffer."""
    tensor = getattr(module, name)
    before = tensor.data
    tensor.data = change(before).contiguous()
    try:
        yield
    finally:
        tensor.data = before


@contextmanager
def several(changes: Iterable[AbstractContextManager[Any]]) -> Iterator[None]:
    """Apply all of these changes."""
    with ExitStack() as stack:
        for change in changes:
            stack.enter_context(change)
        yield
