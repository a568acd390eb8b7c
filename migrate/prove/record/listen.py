"""Observe modules, losses, dropouts and clipped gradients of a running torch program.

Each function replaces torch's own by a function that calls it and then reports what it saw.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from migrate.prove.record import drawn
from migrate.prove.recording import dtypes
from shims import activate

_DROPOUTS = (
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_alpha_dropout",
)


def to_modules(tell: Callable[[torch.nn.Module], None]) -> None:
    """Report every module that is created."""
    # Copied and unpickled modules are created by `__setstate__`.
    for method in ("__init__", "__setstate__"):
        create = getattr(torch.nn.Module, method)

        def reporting(
            module: torch.nn.Module,
            *args: Any,
            _made: Callable[..., None] = create,
            **kwargs: Any,
        ) -> None:
            _made(module, *args, **kwargs)
            tell(module)

        setattr(torch.nn.Module, method, functools.wraps(create)(reporting))


def to_losses(tell: Callable[[list[torch.Tensor]], None]) -> None:
    """Report the values that each backward pass starts from: detached, summed and unscaled."""
    run_backward = torch.autograd.backward
    scale = torch.amp.GradScaler.scale
    depth = 0
    loss_scale = 1.0

    @functools.wraps(run_backward)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal depth, loss_scale
        # Checkpointing runs a backward inside the backward, in a thread of the autograd engine.
        depth += 1
        try:
            if depth == 1:
                starts = [tensors] if isinstance(tensors, torch.Tensor) else tensors
                losses = [tensor.detach().sum() for tensor in starts]
                tell([loss if loss_scale == 1.0 else loss / loss_scale for loss in losses])
                loss_scale = 1.0
            run_backward(tensors, *args, **kwargs)
        finally:
            depth -= 1

    @functools.wraps(scale)
    def scale_and_remember(scaler: Any, outputs: Any) -> Any:
        nonlocal loss_scale
        scaled = scale(scaler, outputs)
        loss_scale = scaler.get_scale() if scaler.is_enabled() else 1.0
        return scaled

    torch.autograd.backward = backward
    torch.amp.GradScaler.scale = scale_and_remember


def to_dropout(tell: Callable[[float], None]) -> None:
    """Report the probability of every dropout in training mode, including zero."""

    def reporting(probability: float) -> float:
        tell(probability)
        return probability

    _at_every_dropout(reporting)


def without_dropout() -> None:
    """Switch every dropout off: in `nn.functional`, including modules, in attention and in RNNs.

    Two devices draw different masks from one seed, so that losses under dropout cannot be compared. On the
    CPU a mask also takes numbers from the generator that shuffles the data.
    """

    def off(probability: float) -> float:
        if _as_written[0]:
            return probability
        _switched_off[0] = max(_switched_off[0], probability)
        if probability:
            drawn.SEED.draw()
        return 0.0

    _at_every_dropout(off)


@contextmanager
def dropout_as_written() -> Iterator[None]:
    """Let dropouts have their own probability for a while, after `without_dropout`."""
    _as_written[0] = True
    try:
        yield
    finally:
        _as_written[0] = False


_as_written = [False]
# The largest probability that `without_dropout` has set to zero.
_switched_off = [0.0]


def switched_off() -> float:
    """Return the largest probability of a dropout that was switched off so far; 0.0 for none."""
    return _switched_off[0]


def _at_every_dropout(change: Callable[[float], float]) -> None:
    """Let every dropout in training mode, and that of attention, take its probability from `change`."""
    functional = torch.nn.functional
    for name in _DROPOUTS:
        drop = getattr(functional, name)

        def dropped(
            input: Any,  # noqa: A002 - torch's name for it
            p: float = 0.5,
            training: bool = True,
            inplace: bool = False,
            _drop: Callable[..., Any] = drop,
        ) -> Any:
            return _drop(input, change(p) if training else p, training, inplace)

        setattr(functional, name, functools.wraps(drop)(dropped))

    attend = functional.scaled_dot_product_attention

    @functools.wraps(attend)
    def attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        return attend(query, key, value, attn_mask, change(dropout_p), *args, **kwargs)

    functional.scaled_dot_product_attention = attention
    for kind in (torch.nn.RNN, torch.nn.LSTM, torch.nn.GRU):
        _at_the_dropout_between_layers(kind, change)


def _at_the_dropout_between_layers(kind: Any, change: Callable[[float], float]) -> None:
    forward = kind.forward

    @functools.wraps(forward)
    def changed(module: Any, *args: Any, **kwargs: Any) -> Any:
        probability = module.dropout
        if module.training:
            module.dropout = change(probability)
        try:
            return forward(module, *args, **kwargs)
        finally:
            module.dropout = probability

    kind.forward = changed


def without_autocast() -> None:
    """Switch autocast off, as a context, a decorator and a state of the process.

    float16 on a GPU becomes bfloat16 on a TPU. The two round differently, by more than any gate allows. In
    float32 the rest of the two programs can be compared.
    """
    context: Any = torch.amp.autocast_mode.autocast
    enter, switch = context.__enter__, torch.set_autocast_enabled

    @functools.wraps(enter)
    def entered(autocast: Any) -> Any:
        autocast._enabled = False
        return enter(autocast)

    @functools.wraps(switch)
    def switched(*args: Any) -> None:
        if args[-1]:
            chosen = torch.get_autocast_dtype(args[0] if args[1:] else "cuda")
            dtypes.meant_by_state(str(chosen).removeprefix("torch."))
        switch(*args[:-1], False)

    context.__enter__ = entered
    torch.set_autocast_enabled = switched


def autocast_in_bfloat16() -> None:
    """Change autocast to float16 into autocast to bfloat16, as a context, a decorator and a process state.

    A loss scaler stays: its powers of two change no digit of bfloat16 or float32 numbers.
    """
    context: Any = torch.amp.autocast_mode.autocast
    enter = context.__enter__

    @functools.wraps(enter)
    def entered(autocast: Any) -> Any:
        if autocast.fast_dtype is torch.float16:
            autocast.fast_dtype = torch.bfloat16
            _made_bfloat16[0] |= autocast._enabled
        return enter(autocast)

    context.__enter__ = entered
    for name in ("set_autocast_dtype", "set_autocast_gpu_dtype", "set_autocast_cpu_dtype"):
        switch = getattr(torch, name)

        @functools.wraps(switch)
        def switched(*args: Any, _switch: Callable[..., None] = switch) -> None:
            _made_bfloat16[0] |= args[-1] is torch.float16
            _switch(*args[:-1], torch.bfloat16 if args[-1] is torch.float16 else args[-1])

        setattr(torch, name, switched)


# Whether `autocast_in_bfloat16` has changed anything.
_made_bfloat16 = [False]


def made_bfloat16() -> bool:
    """Whether an autocast to float16 was changed to bfloat16 so far."""
    return _made_bfloat16[0]


def to_clipping(tell: Callable[[Any], None]) -> None:
    """Report the gradient norm before each clipping, as `clip_grad_norm_` returns it."""
    _to_clipping(tell)
    # torch_xla has its own clip_grad_norm_.
    activate.after_import("torch_xla", lambda: _to_clipping(tell))


def _to_clipping(tell: Callable[[Any], None]) -> None:
    # torch_xla replaces the name in `nn.utils`; torch's own stays in `nn.utils.clip_grad`.
    for module in (torch.nn.utils, torch.nn.utils.clip_grad):
        clip = module.clip_grad_norm_
        if getattr(clip, "_tells", False):
            continue

        def clipped(*args: Any, _clip: Callable[..., Any] = clip, **kwargs: Any) -> Any:
            norm = _clip(*args, **kwargs)
            tell(norm)
            return norm

        reporting: Any = functools.wraps(clip)(clipped)
        reporting._tells = True
        module.clip_grad_norm_ = reporting
