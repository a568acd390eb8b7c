"""Observe calls of a running program besides losses: of models, loss functions, zero_grad.

As in `record.listen`, each function replaces torch's own by a function that calls it and reports what it
saw.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules.loss import _Loss
from torch.utils.data.distributed import DistributedSampler

_LOSSES = (
    *("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div"),
)

# The modules whose forward is running, the innermost last.
_running: list[torch.nn.Module] = []


def innermost() -> torch.nn.Module | None:
    """Return the module whose forward is running."""
    return _running[-1] if _running else None


def to_models(tell: Callable[[list[torch.Tensor]], None]) -> None:
    """Report the tensors passed with gradients to an outermost module that is no loss function."""
    call: Any = torch.nn.Module.__call__

    @functools.wraps(call)
    def called(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return call(module, *args, **kwargs)
        if not _running and not isinstance(module, _Loss) and torch.is_grad_enabled():
            tell(list(_data((args, kwargs))))
        _running.append(module)
        try:
            return call(module, *args, **kwargs)
        finally:
            _running.pop()

    torch.nn.Module.__call__ = called


def to_labels(tell: Callable[[list[torch.Tensor]], None]) -> None:
    """Report the targets of the loss functions of `nn.functional`, including those of modules."""
    inside = False
    for name in _LOSSES:
        loss = getattr(torch.nn.functional, name)

        def reporting(*args: Any, _loss: Callable[..., Any] = loss, **kwargs: Any) -> Any:
            nonlocal inside
            # Under a TorchFunctionMode torch's function calls the function of its name, which is this one,
            # again.
            if inside or torch.compiler.is_compiling() or not torch.is_grad_enabled():
                return _loss(*args, **kwargs)
            tell(list(_data((args[1:2], kwargs.get("target")))))
            inside = True
            try:
                return _loss(*args, **kwargs)
            finally:
                inside = False

        setattr(torch.nn.functional, name, functools.wraps(loss)(reporting))


def to_steps(tell: Callable[[str, torch.optim.Optimizer | None], None]) -> None:
    """Report the calls of each step: "optimizer" is created, "zero_grad", "scheduler", "set_epoch"."""
    for owner, method, what in (
        (torch.optim.Optimizer, "__init__", "optimizer"),
        (torch.optim.Optimizer, "zero_grad", "zero_grad"),
        (torch.nn.Module, "zero_grad", "zero_grad"),
        (DistributedSampler, "set_epoch", "set_epoch"),
        *((kind, "step", "scheduler") for kind in _schedulers()),
    ):
        own = getattr(owner, method)

        def reporting(
            this: Any, *args: Any, _own: Callable[..., Any] = own, _what: str = what, **kwargs: Any
        ) -> Any:
            tell(_what, this if isinstance(this, torch.optim.Optimizer) else None)
            return _own(this, *args, **kwargs)

        setattr(owner, method, functools.wraps(own)(reporting))


def _schedulers() -> Iterator[type]:
    for kind in vars(torch.optim.lr_scheduler).values():
        if isinstance(kind, type) and "step" in vars(kind):
            yield kind


def _data(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value without a gradient: data, not activations."""
    if type(value) is torch.Tensor:
        if not value.requires_grad and value.layout == torch.strided:
            yield value
    elif isinstance(value, dict):
        for element in value.values():
            yield from _data(element)
    elif isinstance(value, list | tuple):
        for element in value:
            yield from _data(element)
