"""Patches of `torch.compile` that run the model uncompiled, with the same result."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from shims.patches.registry import Patch, patch


def patches() -> Iterator[Patch]:
    """Yield the patches of `torch.compile` and `nn.Module.compile`.

    A compiled module keeps its wrapper, because the names in its state dict begin with
    `_orig_mod.`.
    """
    original = torch.compile

    @functools.wraps(original)
    def compiled(model: Any = None, **kwargs: Any) -> Any:
        if model is None:
            return lambda model: compiled(model, **kwargs)
        if not isinstance(model, torch.nn.Module):
            return model
        from torch._dynamo.eval_frame import DisableContext, OptimizedModule

        return OptimizedModule(model, DisableContext())

    yield patch(torch, "compile", compiled, "runs the model without compiling it")
    yield patch(torch.nn.Module, "compile", lambda module, *args, **kwargs: None, "runs as it is")
