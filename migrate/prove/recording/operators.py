"""Replace functions of torch so that `torch.jit.script` still knows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def put(owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Set `owner.name` to `function`.

    torch.jit.script knows an operator by its function. For an unknown function it asks for the source, but
    built-in functions have none: importing a library with scripted layers would fail.
    """
    import torch

    known = torch.jit._builtins._find_builtin(getattr(owner, name))
    if known is not None:
        torch.jit._builtins._register_builtin(function, known)
    setattr(owner, name, function)
