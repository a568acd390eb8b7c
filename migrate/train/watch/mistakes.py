"""Known mistakes of a loss, made on purpose in the script's own step: what a program that has one gives.

A program whose loss and gradients are those of a mistake has that mistake.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (its usual name)
from torch.overrides import TorchFunctionMode


@dataclass(frozen=True)
class Mistake:
    """Values of the step with a mistake.

    Attributes:
        what: the mistake in words.
        loss: the loss.
        gradients: gradient of each parameter; None where there is none.
    """

    what: str
    loss: float
    gradients: Mapping[str, torch.Tensor | None]


def mistaken(
    step: nn.Module,
    tensors: Mapping[str, torch.Tensor],
    noise: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
) -> list[Mistake]:
    """Run the step with each mistake, and return those that change its loss or a gradient.

    Args:
        step: the script's step. Its buffers and modes are as before afterwards.
        tensors: its inputs.
        noise: makes each run of the step draw the same numbers.
    """
    rows = next((tensor.shape[0] for tensor in tensors.values() if tensor.dim()), 1)
    with _kept(step), noise():
        right = _values(step, tensors)
    mistakes: list[Mistake] = []
    for what, plant in _PLANTED.items():
        try:
            with _kept(step), noise(), plant(step, rows):
                values = _values(step, tensors)
        except (RuntimeError, ValueError, TypeError, IndexError):
            continue  # the step has nothing that this mistake could be made with
        if values is not None and right is not None and not _alike(values, right):
            mistakes.append(Mistake(what, *values))
    return mistakes


_Values = tuple[float, dict[str, torch.Tensor | None]]


def _values(step: nn.Module, tensors: Mapping[str, torch.Tensor]) -> _Values | None:
    loss = step(**tensors)
    if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
        return None
    loss = loss.mean()
    trained = {name: p for name, p in step.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    return loss.item(), dict(zip(trained, gradients, strict=True))


def _alike(values: _Values, right: _Values) -> bool:
    if abs(values[0] - right[0]) > 1e-6 * abs(right[0]):
        return False
    for name, gradient in values[1].items():
        other = right[1][name]
        if gradient is None or other is None:
            there = other if gradient is None else gradient
            if there is not None and bool(there.any()):
                return False
        elif float((gradient - other).norm()) > 1e-5 * float(other.norm()):
            return False
    return True


@contextlib.contextmanager
def _kept(step: nn.Module) -> Iterator[None]:
    """Restore buffers, modes and the generator afterwards."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in step.buffers()]
    modes = {module: module.training for module in step.modules()}
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
        for module, training in modes.items():
            module.training = training
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)


# ---------------------------------------------------------------------------- the mistakes


class _Calls(TorchFunctionMode):
    """Calls of torch with a change.

    Args:
        change: receives the function, its positional and its keyword arguments; returns the changed
            result, or `NotImplemented` for a call that stays as it is.
    """

    def __init__(self, change: Callable[[Any, list[Any], dict[str, Any]], Any]) -> None:
        self._change = change

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        changed = self._change(func, list(args), dict(kwargs or {}))
        return func(*args, **(kwargs or {})) if changed is NotImplemented else changed


_Plant = Callable[[nn.Module, int], AbstractContextManager[Any]]


def _calls(change: Callable[[int, Any, list[Any], dict[str, Any]], Any]) -> _Plant:
    return lambda step, rows: _Calls(lambda *call: change(rows, *call))


@contextlib.contextmanager
def _without_stops(step: nn.Module, rows: int) -> Iterator[None]:
    """`detach` and `no_grad` have no effect."""
    contexts = [torch.autograd.grad_mode.no_grad, torch.autograd.grad_mode.inference_mode]
    kept = [(cls, cls.__enter__, cls.__exit__) for cls in contexts]
    same = (torch.Tensor.detach, torch.detach)

    def change(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return args[0] if func in same or func is torch.Tensor.data.__get__ else NotImplemented

    for cls in contexts:
        setattr(cls, "__enter__", lambda self: None)  # noqa: B010
        setattr(cls, "__exit__", lambda self, *error: None)  # noqa: B010
    try:
        with _Calls(change):
            yield
    finally:
        for cls, enter, leave in kept:
            setattr(cls, "__enter__", enter)  # noqa: B010
            setattr(cls, "__exit__", leave)  # noqa: B010


def _entropy_arguments(func: Any, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Arguments of a cross entropy over classes by their names; None for another call."""
    if func not in (F.cross_entropy, F.nll_loss):
        return None
    names = ["input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction"]
    named = {**dict(zip(names, args, strict=False)), **kwargs}
    named.setdefault("ignore_index", -100)
    named.setdefault("reduction", "mean")
    return named


def _padding_in_mean(rows: int, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    named = _entropy_arguments(func, args, kwargs)
    if named is not None and named["reduction"] == "mean":
        each = func(**{**named, "reduction": "none"})
        return each.mean()
    if _is_sum(func) and _is_mask(args[0]):
        return func(torch.ones_like(args[0]), *args[1:], **kwargs)
    return NotImplemented


def _padding_as_class(rows: int, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    named = _entropy_arguments(func, args, kwargs)
    if named is None or named["target"].is_floating_point():
        return NotImplemented
    target = torch.where(named["target"] == named["ignore_index"], 0, named["target"])
    return func(**{**named, "target": target, "ignore_index": -100})


def _mean_of_means(rows: int, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    named = _entropy_arguments(func, args, kwargs)
    if named is not None and named["reduction"] == "mean" and named.get("weight") is None:
        target = named["target"]
        each = func(**{**named, "reduction": "none"}).reshape(rows, -1)
        counted = (target != named["ignore_index"]).reshape(rows, -1)
        return (each.sum(1) / counted.sum(1).clamp(min=1)).mean()
    whole = _is_sum(func) and len(args) == 1 and not kwargs
    if whole and args[0].dim() > 1 and args[0].shape[0] == rows:
        return args[0].flatten(1).sum(1)
    return NotImplemented


def _mean_over_all(rows: int, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    of_rows = _is_sum(func) and len(args) + len(kwargs) == 2 and args[0].dim() == 2
    if of_rows and (kwargs.get("dim") if kwargs else args[1]) in (1, -1, (1,), (-1,)):
        return args[0].sum().expand(args[0].shape[0])
    return NotImplemented


def _is_sum(func: Any) -> bool:
    return func in (torch.sum, torch.Tensor.sum)


def _is_mask(value: torch.Tensor) -> bool:
    if value.requires_grad or value.dim() == 0:
        return False
    return bool(((value == 0) | (value == 1)).all())


def _unshifted(rows: int, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if func is not torch.Tensor.__getitem__ or args[0].is_floating_point():
        return NotImplemented
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    if slice(1, None) not in [part for part in index if isinstance(part, slice)]:
        return NotImplemented
    earlier = tuple(slice(None, -1) if part == slice(1, None) else part for part in index)
    return args[0][earlier]


def _other_variance(rows: int, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    names = ("var", "std", "var_mean", "std_mean")
    known = {getattr(owner, n, None) for owner in (torch, torch.Tensor) for n in names} - {None}
    if func not in known:
        return NotImplemented
    unbiased = kwargs.pop("unbiased", None)
    correction = kwargs.pop("correction", None)
    if len(args) > 1 and isinstance(args[-1], bool) and unbiased is None and len(args) < 4:
        unbiased = args.pop()
    was = correction if correction is not None else (1 if unbiased is None or unbiased else 0)
    return func(*args, **kwargs, correction=0 if was else 1)


def _unclamped(rows: int, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    clamps = (torch.clamp, torch.Tensor.clamp, torch.clip, torch.Tensor.clip)
    return args[0] if func in clamps else NotImplemented


def _unsmoothed(rows: int, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if func is not F.cross_entropy or not kwargs.get("label_smoothing"):
        return NotImplemented
    return func(*args, **{**kwargs, "label_smoothing": 0.0})


def _unweighted(rows: int, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    named = _entropy_arguments(func, args, kwargs)
    if named is None or named.get("weight") is None:
        return NotImplemented
    return func(**{**named, "weight": None})


def _mode(training: bool) -> _Plant:
    @contextlib.contextmanager
    def other(step: nn.Module, rows: int) -> Iterator[None]:
        step.train(training)
        yield

    return other


_PLANTED: Mapping[str, _Plant] = {
    "lost stop_gradient: gradients flow where the script has detach or no_grad": _without_stops,
    "padding counted: ignored labels count in the mean": _calls(_padding_in_mean),
    "padding counted: ignored labels are taken for class 0": _calls(_padding_as_class),
    "mean of means: each row's mean is averaged, the script averages over all labels": _calls(
        _mean_of_means
    ),
    "mean over all: the script averages the mean of each row": _calls(_mean_over_all),
    "labels not shifted: each label is its own position's, the script's is the next one's": _calls(
        _unshifted
    ),
    "biased variance: var or std divides by n where the script divides by n - 1, or the reverse": _calls(
        _other_variance
    ),
    "lost clamp: values that the script clamps are not": _calls(_unclamped),
    "lost label smoothing": _calls(_unsmoothed),
    "lost class weights": _calls(_unweighted),
    "evaluation mode: the loss is computed with the running statistics": _mode(False),
    "training mode: the loss is computed with the statistics of the batch": _mode(True),
}
