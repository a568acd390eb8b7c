"""The float64 reference: a torch model in float64 throughout, also where its code says float32.

Many models compute a norm, a softmax or rotary angles in float32 by name (`x.float()`,
`softmax(…, dtype=torch.float32)`), whatever the dtype of their weights. In a model moved to float64 these
would round to float32, and the reference would be as coarse as what it measures. What a model makes without
a dtype (`torch.zeros(3)`) follows torch's default dtype, which is float64 in here.

A few models cannot run so: they ask for the dtype of a tensor, or call what has no float64 form. Their
reference runs in float32 with the layers of torch.nn in float64, or in float32 alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

# How a reference runs: in float64, in float32 with layers in float64, in float32.
Extent = Literal["throughout", "layers", "none"]
_WIDE = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.complex64: torch.complex128,
}


class Float64(TorchDispatchMode):
    """Within it every operation that is told to make a narrower floating tensor makes a float64 one.

    A narrower tensor beside a float64 one (a constant of numpy, a tensor that is no buffer) is widened for
    the operation, except where it is written into. What is rounded by other means (`view` to integers and
    back, a pass through numpy) stays rounded; the capture notes layers whose output is not float64.
    """

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        args = tuple(_widened(one) for one in args)
        kwargs = {key: _widened(one) for key, one in (kwargs or {}).items()}
        if not func._schema.is_mutable:
            args, kwargs = _joined(args, kwargs)
        return func(*args, **kwargs)


def _widened(argument: Any) -> Any:
    if isinstance(argument, torch.dtype):
        return _WIDE.get(argument, argument)
    return argument


def _joined(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments with narrower tensors widened, if a wide one is among them."""
    held = {
        one.dtype for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)
    }
    if not held & set(_WIDE) or not held & set(_WIDE.values()):
        return args, kwargs

    def wide(one: Any) -> Any:
        if isinstance(one, torch.Tensor) and one.dtype in _WIDE:
            return one.to(_WIDE[one.dtype])
        return one

    made: tuple[Any, Any] = pytree.tree_map(wide, (args, kwargs))
    return made


@contextlib.contextmanager
def in_float64() -> Iterator[None]:
    """What runs in here computes in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Float64():
            yield
    finally:
        torch.set_default_dtype(before)


def widen_layers(model: nn.Module) -> None:
    """Have the layers of torch.nn compute in float64, in a model that runs in float32; in place.

    Their arguments are widened and what they give is rounded again. A layer whose weights another module has
    too stays as it is.
    """
    owners: dict[int, set[int]] = {}
    for module in model.modules():
        for tensor in module.parameters(recurse=False):
            owners.setdefault(id(tensor), set()).add(id(module))
    for module in model.modules():
        own = list(module.parameters(recurse=False))
        plain = type(module).__module__.startswith("torch.nn.modules.")
        if not own or not plain or any(len(owners[id(one)]) > 1 for one in own):
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
    def cast(one: Any) -> Any:
        return one.to(new) if isinstance(one, torch.Tensor) and one.dtype == old else one

    return pytree.tree_map(cast, value)
