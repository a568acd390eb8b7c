"""Recording a model in bfloat16, so that the recording shows where its dtypes change.

In float32 `x.float()` and `y.to(x.dtype)` do nothing, and `torch.export` keeps neither; in bfloat16 it does.
A model that does not use bfloat16 by itself is recorded with weights and inputs in bfloat16. There bfloat16
stands for the dtype that the model computes in, and float32 for what the original computes in float32
whatever its weights are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from converters.graph.ir import COMPUTE

_NARROW = (torch.bfloat16, torch.float16)


class NarrowSeen(TorchDispatchMode):
    """Notes whether a model that is given float32 computes in 16 bits somewhere.

    Attributes:
        seen: whether it does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.seen = self.seen or any(
            isinstance(one, torch.Tensor) and one.dtype in _NARROW
            for one in (result if isinstance(result, list | tuple) else [result])
        )
        return result


def saved_floats(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The float32 parameters and buffers of a module that its state dict has, under all their names.

    A buffer that is not saved keeps its dtype when a checkpoint is loaded in bfloat16, so it keeps it here.
    """
    return {
        name: tensor
        for name, tensor in module.state_dict(keep_vars=True).items()
        if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float32
    }


@contextmanager
def in_compute_dtype(module: torch.nn.Module, dtype: torch.dtype = COMPUTE) -> Iterator[None]:
    """The module with its saved float32 tensors in another dtype; they are the old ones afterwards."""
    before = {id(one): (one, one.data) for one in saved_floats(module).values()}
    gradients = [(one, one.grad) for one, _ in before.values()]
    for tensor, data in before.values():
        tensor.grad = None
        tensor.data = data.to(dtype)
    try:
        yield
    finally:
        for tensor, data in before.values():
            tensor.data = data
        for tensor, gradient in gradients:
            tensor.grad = gradient


def narrowed(
    inputs: Mapping[str, torch.Tensor], dtype: torch.dtype = COMPUTE
) -> dict[str, torch.Tensor]:
    """Inputs with those of float32 in another dtype."""
    return {
        name: one.to(dtype) if one.dtype == torch.float32 else one for name, one in inputs.items()
    }


class ExactNumbers(TorchFunctionMode):
    """Makes tensors of numbers in float32 before they are rounded: a port in float32 needs all digits."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        numbers = func in (torch.tensor, torch.as_tensor) and kwargs.get("dtype") == COMPUTE
        if numbers and not any(
            isinstance(one, torch.Tensor) for one in pytree.tree_leaves((args, kwargs))
        ):
            return func(*args, **{**kwargs, "dtype": torch.float32}).to(COMPUTE)
        return func(*args, **kwargs)


@contextmanager
def grouped_products_recorded() -> Iterator[None]:
    """Products by expert as transformers' own operator, not by torch's, which asks where tensors lie."""
    module: Any = sys.modules.get("transformers.integrations.moe")
    before = getattr(module, "_can_use_grouped_mm", None)
    if before is None:
        yield
        return
    module._can_use_grouped_mm = lambda *_: False
    try:
        yield
    finally:
        module._can_use_grouped_mm = before
