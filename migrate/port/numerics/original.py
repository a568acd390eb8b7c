"""The original in bfloat16 and in float64, on weights and inputs that were rounded to bfloat16."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from converters.graph.recording.precision import (
    MixedProducts,
    in_compute_dtype,
    narrowed,
    saved_floats,
)
from migrate.parity.ground.draws import Draws
from migrate.parity.sides.torch.capture.tree import leaves
from migrate.parity.sides.torch.draws import ComparisonDraws
from migrate.parity.sides.torch.float64 import Float64Mode
from migrate.port.numerics.results import SEED, NumericsRun, Products

Tensors = Mapping[str, torch.Tensor]
_PRODUCTS = {
    *("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "linear"),
    *("convolution", "_convolution", "mkldnn_convolution", "mkldnn_linear", "_grouped_mm"),
    *("mkldnn_rnn_layer", "lstm", "gru", "rnn_tanh", "rnn_relu"),
}
_GIVEN = ("query", "key", "value")


class _ProductRecorder(TorchDispatchMode):
    """Notes what each module multiplies.

    Attributes:
        paused: whether what is multiplied now is part of a product that was noted.
        path: path of the running module.
        noted: see `Products`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.path: list[str] = [""]
        self.noted: Products = {}
        self.paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if not self.paused and name in _PRODUCTS:
            self.note(args)
        return func(*args, **(kwargs or {}))

    def note(self, args: Any) -> None:
        """Note what the module that runs multiplies."""
        tensors = pytree.tree_leaves(args)
        dtypes = {
            _name(tensor.dtype)
            for tensor in tensors
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
        }
        self.noted.setdefault(self.path[-1], set()).update(dtypes)


class _Attentions(TorchFunctionMode):
    """Recorder of attention calls, for which torch chooses the kernel and its dtype."""

    def __init__(self, products: _ProductRecorder) -> None:
        super().__init__()
        self.products = products

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not nn.functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        operands = [*args, *(kwargs[name] for name in _GIVEN if name in kwargs)]
        self.products.note(operands[:3])
        self.products.paused = True
        try:
            return func(*args, **kwargs)
        finally:
            self.products.paused = False


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@contextlib.contextmanager
def _paths(module: nn.Module, products: _ProductRecorder) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name, submodule in module.named_modules():
            if not name:
                continue
            before = submodule.register_forward_pre_hook(
                lambda *_, name=name: products.path.append(name)
            )
            after = submodule.register_forward_hook(lambda *_: products.path.pop() and None)
            stack.callback(before.remove)
            stack.callback(after.remove)
        yield


def in_bfloat16(module: nn.Module, inputs: Tensors) -> NumericsRun:
    """Run the original in bfloat16; buffers that it does not save keep their dtype."""
    products = _ProductRecorder()
    within = (in_compute_dtype(module), torch.no_grad(), _paths(module, products))
    modes = (_Attentions(products), MixedProducts(), ComparisonDraws(Draws(SEED)))
    with contextlib.ExitStack() as stack:
        for manager in (*within, products, *modes):
            stack.enter_context(manager)
        named_outputs = list(leaves(module(**narrowed(inputs))))
    outputs = {path: _array(output) for path, output in named_outputs}
    return NumericsRun(
        outputs, {path: _name(output.dtype) for path, output in named_outputs}, products.noted
    )


def outputs_of_modules(module: nn.Module, inputs: Tensors, *, exact: bool) -> dict[str, Any]:
    """Path → the first floating output of each module that is called once, in the order of their ends.

    Args:
        module: the original.
        inputs: what it is called with.
        exact: whether it runs in float64 on the rounded weights and inputs, in place of bfloat16.
    """
    ended: dict[str, list[Any]] = {}

    def note(name: str, output: Any) -> None:
        floating = [tensor for _, tensor in leaves(output) if tensor.is_floating_point()]
        ended.setdefault(name, []).append(_array(floating[0]) if floating else None)

    with contextlib.ExitStack() as stack:
        for name, submodule in module.named_modules():
            hook = submodule.register_forward_hook(
                lambda _, __, output, name=name: note(name, output)
            )
            stack.callback(hook.remove)
        (reference if exact else in_bfloat16)(module, inputs)
    return {
        name: outputs[0]
        for name, outputs in ended.items()
        if len(outputs) == 1 and outputs[0] is not None
    }


def reference(module: nn.Module, inputs: Tensors) -> dict[str, Any]:
    """Return the outputs of the original in float64 on the rounded weights and inputs.

    Where a module cannot run in float64 it runs in float32, whose own rounding is four digits below what is
    measured.
    """
    try:
        return _reference(module, inputs, torch.float64, Float64Mode)
    except (RuntimeError, TypeError, ValueError):
        return _reference(module, inputs, torch.float32, contextlib.nullcontext)


def _reference(
    module: nn.Module, inputs: Tensors, dtype: torch.dtype, mode: Callable[[], Any]
) -> dict[str, Any]:
    rounded = {
        name: array.to(dtype) if array.is_floating_point() else array
        for name, array in narrowed(inputs).items()
    }
    default = torch.get_default_dtype()
    with _rounded(module, dtype), torch.no_grad(), mode(), ComparisonDraws(Draws(SEED)):
        torch.set_default_dtype(dtype)
        try:
            return {path: _array(output) for path, output in leaves(module(**rounded))}
        finally:
            torch.set_default_dtype(default)


@contextlib.contextmanager
def _rounded(module: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Return the module with its saved values rounded to bfloat16, all in a wide dtype."""
    saved = {id(tensor) for tensor in saved_floats(module).values()}
    every = [*module.parameters(), *module.buffers()]
    before = [(tensor, tensor.data) for tensor in every if tensor.is_floating_point()]
    try:
        for tensor, data in before:
            tensor.data = (data.to(torch.bfloat16) if id(tensor) in saved else data).to(dtype)
        yield
    finally:
        for tensor, data in before:
            tensor.data = data


def _array(tensor: torch.Tensor) -> Any:
    detached = tensor.detach()
    return (detached.double() if detached.is_floating_point() else detached).numpy()
