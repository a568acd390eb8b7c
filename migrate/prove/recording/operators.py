"""Replace functions of torch so that `torch.jit.script` still knows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def put(owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Let `owner.name` be `function` from now on.

    torch.jit.script knows an operator by the function that stands for it. For one that it does not know it
    asks for the source, and what is built in has none: a library with scripted layers would not be imported.
    """
    import torch

    known = torch.jit._builtins._find_builtin(getattr(owner, name))
    if known is not None:
        torch.jit._builtins._register_builtin(function, known)
    setattr(owner, name, function)
