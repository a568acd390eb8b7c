"""Float64 reference: a torch model in float64 throughout, even where its code says float32.

Many models compute a norm, a softmax or rotary angles in float32 by name (`x.float()`, `softmax(…,
dtype=torch.float32)`), whatever the dtype of their weights. In a model moved to float64 these would round to
float32, and the reference would be as coarse as what it measures. Tensors that a model creates without a
dtype (`torch.zeros(3)`) have torch's default dtype, which is float64 in this context.

A few models cannot run so: they test the dtype of a tensor, or call functions without a float64 form. Their
reference runs in float32 with the layers of torch.nn in float64, or in float32 alone.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

# Dtype of a reference: float64, float32 with layers in float64, or float32.
Extent = Literal["throughout", "layers", "none"]
_WIDE = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.complex64: torch.complex128,
}


class Float64Mode(TorchDispatchMode):
    """Mode in which operations that would create a narrower floating tensor create a float64 tensor.

    A narrower tensor beside a float64 tensor (a constant of numpy, a tensor that is no buffer) is widened
    for the operation, except where it is written into. Rounding by other means (`view` to integers and back,
    a pass through numpy) stays; the capture notes layers whose output is not float64.

    Args:
        creates: whether such operations create float64 tensors; otherwise they only join wide tensors.
    """

    def __init__(self, *, creates: bool = True) -> None:
        super().__init__()
        self._creates = creates
        self._functions = contextlib.ExitStack()

    def __enter__(self) -> Any:
        self._functions.enter_context(_joining_functions())
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._functions.close()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self._creates:
            args = tuple(_widened(argument) for argument in args)
            kwargs = {key: _widened(argument) for key, argument in kwargs.items()}
        if not func._schema.is_mutable:
            args, kwargs = _joined(args, kwargs)
        written = _WITHOUT_FLOAT64.get(func)
        if written is not None and args[0].dtype in _WIDE.values():
            return written(*args, **kwargs)
        return func(*args, **kwargs)


# Functions that compare the dtypes of their arguments before an operator of theirs is called. A mode for
# functions would see them too, but is off within each `backward` that it sees.
_COMPARE_DTYPES = (
    *((holder, f"conv{n}d") for holder in (torch, F) for n in (1, 2, 3)),
    *((torch._VF, name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")),
    *((holder, name) for holder in (torch, F) for name in ("bilinear", "prelu")),
    (torch, "tensordot"),
    (torch.linalg, "multi_dot"),
    (F, "scaled_dot_product_attention"),
)


@contextlib.contextmanager
def _joining_functions() -> Iterator[None]:
    """Widen a narrower tensor beside a wide one for functions that refuse the two."""

    def joining(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def joined(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = _joined(args, kwargs)
            return function(*args, **kwargs)

        return joined

    before = [(holder, name, getattr(holder, name)) for holder, name in _COMPARE_DTYPES]
    checks = nn.RNNBase.check_input
    for holder, name, function in before:
        setattr(holder, name, joining(function))
    nn.RNNBase.check_input = lambda *_: None
    try:
        yield
    finally:
        for holder, name, function in before:
            setattr(holder, name, function)
        nn.RNNBase.check_input = checks


def _grouped_products(
    x: torch.Tensor,
    other: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Compute `aten._grouped_mm`, which has kernels up to float32 only.

    Groups end at the offsets. They are rows of `x` where it is a matrix beside several, columns of `other` in
    the opposite case, and parts of the sum where both are matrices. What no group covers is zero.
    """
    if offs is None:
        product = x @ other
    else:
        ends = [0, *offs.tolist()]
        groups = list(enumerate(itertools.pairwise(ends)))
        if x.ndim == other.ndim:
            product = torch.stack([x[:, a:b] @ other[a:b] for _, (a, b) in groups])
        else:
            product = x.new_zeros(x.shape[-2], other.shape[-1])
            for group, (a, b) in groups:
                if x.ndim == 2:
                    product[a:b] = x[a:b] @ other[group]
                else:
                    product[:, a:b] = x[group] @ other[:, a:b]
    product = product if bias is None else product + bias
    return product if out_dtype is None else product.to(out_dtype)


def _hardsigmoid_gradient(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Compute `aten.hardsigmoid_backward`, whose kernel for float64 has 1 / 6 rounded to float32."""
    return torch.where((x > -3) & (x < 3), gradient / 6, 0.0)


# Operators that raise for float64, or round to float32 there, as they are computed.
_WITHOUT_FLOAT64: dict[Any, Callable[..., torch.Tensor]] = {
    torch.ops.aten._grouped_mm.default: _grouped_products,
    torch.ops.aten.hardsigmoid_backward.default: _hardsigmoid_gradient,
}


def _widened(argument: Any) -> Any:
    if isinstance(argument, torch.dtype):
        return _WIDE.get(argument, argument)
    return argument


def _joined(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Widen the narrower arguments, if a wide tensor is among the arguments."""
    held = {
        leaf.dtype for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)
    }
    if not held & set(_WIDE) or not held & set(_WIDE.values()):
        return args, kwargs

    def wide(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dtype in _WIDE:
            return leaf.to(_WIDE[leaf.dtype])
        return leaf

    widened: tuple[Any, Any] = pytree.tree_map(wide, (args, kwargs))
    return widened


@contextlib.contextmanager
def in_float64() -> Iterator[None]:
    """Compute in float64 in this context."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Float64Mode():
            yield
    finally:
        torch.set_default_dtype(before)


def widen_layers(model: nn.Module) -> None:
    """Make the layers of torch.nn compute in float64 in a model that runs in float32; in place.

    Their arguments are widened and their results are rounded again. A layer that shares weights with another
    module stays unchanged.
    """
    owners: dict[int, set[int]] = {}
    for module in model.modules():
        for tensor in module.parameters(recurse=False):
            owners.setdefault(id(tensor), set()).add(id(module))
    for module in model.modules():
        own = list(module.parameters(recurse=False))
        plain = type(module).__module__.startswith("torch.nn.modules.")
        if not own or not plain or any(len(owners[id(parameter)]) > 1 for parameter in own):
            continue
        if any(True for _ in module.children()):
            continue
        module.double()
        module.register_forward_pre_hook(_enter, with_kwargs=True)
        module.register_forward_hook(_leave)


def _enter(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    return _cast(args, torch.float32, torch.float64), _cast(kwargs, torch.float32, torch.float64)


def _leave(_: nn.Module, args: Any, output: Any) -> Any:
    del args
    return _cast(output, torch.float64, torch.float32)


def _cast(value: Any, old: torch.dtype, new: torch.dtype) -> Any:
    def cast(leaf: Any) -> Any:
        return leaf.to(new) if isinstance(leaf, torch.Tensor) and leaf.dtype == old else leaf

    return pytree.tree_map(cast, value)
