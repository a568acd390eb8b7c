"""Recording of a model in bfloat16, so that the recording shows where its dtypes change.

In float32 `x.float()` and `y.to(x.dtype)` do nothing, and `torch.export` keeps neither; in bfloat16
it does. A model that does not use bfloat16 by itself is recorded with weights and inputs in
bfloat16. There bfloat16 stands for the dtype that the model computes in, and float32 for what the
original computes in float32 whatever its weights are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from converters.graph.ir import COMPUTE
from converters.graph.recording.state import attributes_stay

_NARROW = (torch.bfloat16, torch.float16)


class NarrowSeen(TorchDispatchMode):
    """Records whether a model with float32 inputs computes in 16 bits somewhere.

    Attributes:
        seen: whether it does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.seen = self.seen or any(
            isinstance(tensor, torch.Tensor) and tensor.dtype in _NARROW
            for tensor in (result if isinstance(result, list | tuple) else [result])
        )
        return result


def saved_floats(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The float32 parameters and buffers of a module's state dict, under all their names.

    A buffer that is not saved keeps its dtype when a checkpoint is loaded in bfloat16, so it keeps
    it here.
    """
    return {
        name: tensor
        for name, tensor in module.state_dict(keep_vars=True).items()
        if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float32
    }


@contextmanager
def in_compute_dtype(module: torch.nn.Module, dtype: torch.dtype = COMPUTE) -> Iterator[None]:
    """The module with its saved float32 tensors in another dtype; afterwards these tensors and the
    module's plain attributes are restored.
    """
    before = {
        id(tensor_held): (tensor_held, tensor_held.data)
        for tensor_held in saved_floats(module).values()
    }
    gradients = [(tensor_held, tensor_held.grad) for tensor_held, _ in before.values()]
    for tensor, data in before.values():
        tensor.grad = None
        tensor.data = data.to(dtype)
    try:
        with attributes_stay(module):
            yield
    finally:
        for tensor, data in before.values():
            tensor.data = data
        for tensor, gradient in gradients:
            tensor.grad = gradient


def narrowed(
    inputs: Mapping[str, torch.Tensor], dtype: torch.dtype = COMPUTE
) -> dict[str, torch.Tensor]:
    """The inputs, with float32 tensors converted to another dtype."""
    return {
        name: tensor.to(dtype) if tensor.dtype == torch.float32 else tensor
        for name, tensor in inputs.items()
    }


class ExactNumbers(TorchFunctionMode):
    """Makes tensors of numbers in float32 before they are rounded: a port in float32 needs all
    digits.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        numbers = func in (torch.tensor, torch.as_tensor) and kwargs.get("dtype") == COMPUTE
        if numbers and not any(
            isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves((args, kwargs))
        ):
            return func(*args, **{**kwargs, "dtype": torch.float32}).to(COMPUTE)
        return func(*args, **kwargs)


_FUNCTIONS, _TENSOR = torch.nn.functional, torch.Tensor
_PRODUCTS = frozenset(
    {
        *(_FUNCTIONS.linear, _FUNCTIONS.bilinear, _FUNCTIONS.scaled_dot_product_attention),
        *(_FUNCTIONS.conv1d, _FUNCTIONS.conv2d, _FUNCTIONS.conv3d),
        *(torch.conv1d, torch.conv2d, torch.conv3d),
        *(_FUNCTIONS.conv_transpose1d, _FUNCTIONS.conv_transpose2d, _FUNCTIONS.conv_transpose3d),
        *(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d),
        *(torch.matmul, torch.mm, torch.bmm, torch.mv, torch.dot, torch.einsum, torch.tensordot),
        *(torch.addmm, torch.addbmm, torch.baddbmm, torch.addmv, torch.chain_matmul),
        *(_TENSOR.matmul, _TENSOR.mm, _TENSOR.bmm, _TENSOR.mv, _TENSOR.dot, _TENSOR.addmm),
        *(_TENSOR.baddbmm, _TENSOR.__matmul__, _TENSOR.__rmatmul__),
    }
)


_LAYERS = (torch.nn.Linear, torch.nn.Bilinear, torch.nn.modules.conv._ConvNd)


class MixedProducts(TorchFunctionMode):
    """Casts float32 factors to the narrow dtype where both meet in a product, as `torch.autocast`
    does.

    Torch itself raises there. A model that computes angles in float32 and multiplies them by its
    weights (the time of a diffusion model, the frequencies of a NeRF) is trained under autocast.
    """

    def __enter__(self) -> Any:
        """Convert layers' inputs to their dtype too: the cast precedes the layer's call."""
        self._hook = register_module_forward_pre_hook(_given_narrow)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self._hook.remove()
        super().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _PRODUCTS:
            tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if _is_tensor(leaf)]
            if {COMPUTE, torch.float32} <= {tensor.dtype for tensor in tensors}:
                args, kwargs = pytree.tree_map(_narrow, (args, kwargs))
        return func(*args, **kwargs)


def _given_narrow(layer: torch.nn.Module, args: Any) -> Any:
    """A layer's input in the dtype of its weight; for a Sequential, the dtype of its first layer."""
    while type(layer).forward is torch.nn.Sequential.forward and len(layer):
        layer = layer[0]
    if not isinstance(layer, _LAYERS) or layer.weight.dtype != COMPUTE:
        return None
    return tuple(map(_narrow, args))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _narrow(value: Any) -> Any:
    return value.to(COMPUTE) if _is_tensor(value) and value.dtype == torch.float32 else value


@contextmanager
def grouped_products_recorded() -> Iterator[None]:
    """Use transformers' own operator for products by expert; torch's operator asks where tensors
    lie.
    """
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
