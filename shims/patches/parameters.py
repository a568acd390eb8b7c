"""Patches that keep parameters the same objects when a module moves between host and TPU, as on CUDA.

torch keeps the objects if both devices have tensors of one kind. Between the host and a TPU, of
torch_xla or torch_tpu, it creates new ones. An optimizer created before the move would train
parameters that no module has, and a weight with two names would become two weights.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from shims.patches.cuda import refusal
from shims.patches.registry import Patch, patch

# DDP modules that are alive.
WRAPPED: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def patches() -> Iterator[Patch]:
    """Yield the patch of `nn.Module._apply`, by which modules move."""
    apply = torch.nn.Module._apply

    @functools.wraps(apply)
    def kept(
        module: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> torch.nn.Module:
        if recurse:
            for child in module.children():
                child._apply(fn)
        for name, parameter in module._parameters.items():
            if parameter is not None and not is_lazy(parameter):
                _move(parameter, fn, f"{type(module).__name__}.{name}")
        return apply(module, fn, recurse=False)

    yield patch(torch.nn.Module, "_apply", kept, "parameters stay the same objects")


def _move(parameter: Any, fn: Callable[[torch.Tensor], torch.Tensor], name: str) -> None:
    """Give the parameter the content of `fn(parameter)`, if that is on another device."""
    with torch.no_grad():
        moved = fn(parameter)
    if {"xla", "tpu"}.isdisjoint((moved.device.type, parameter.device.type)):
        return
    if moved.device.type == parameter.device.type:
        return
    if any(parameter is wrapped for ddp in WRAPPED for wrapped in ddp.parameters()):
        raise refusal(
            f"a move of {name}, which DDP holds,",
            "move the model before DDP; torch.save copies to the host by itself",
            "optimizer-order",
        )
    if parameter._backward_hooks:
        raise refusal(
            f"a move of {name}, which has hooks", "register hooks on parameters after the move"
        )
    gradient, parameter.grad = parameter.grad, None
    fresh = torch.Tensor._make_subclass(type(parameter), moved, parameter.requires_grad)
    # Attributes set by the program are kept too.
    fresh.__dict__.update(parameter.__dict__)
    del moved
    if parameter.requires_grad:
        # A graph from before the move holds the old content, so its gradients would be lost.
        torch.autograd.graph.get_gradient_edge(parameter).node.register_prehook(_refuse_gradients)
    # Not `torch.utils.swap_tensors`, which refuses if such a graph exists: weight_norm creates one.
    torch._C._swap_tensor_impl(parameter, fresh)
    if gradient is not None:
        with torch.no_grad():
            parameter.grad = fn(gradient).requires_grad_(gradient.requires_grad)


def _refuse_gradients(gradients: Any) -> None:
    raise refusal(
        "backward() of a loss from before its model moved", "move the model before the forward pass"
    )
