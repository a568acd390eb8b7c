"""Another base of the rotary frequencies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.changes import weight
from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant
from migrate.parity.causes.frame.scene import Scene

_USUAL = (1e4, 5e5, 1e6, 1e5, 1e7, 2e4, 2.5e5, 5e4, 150000.0, 100.0)


class _Truth(nn.Module):
    def __init__(self, base: float = 5e5) -> None:
        super().__init__()
        self.register_buffer("inv_freq", base ** (-torch.arange(0, 16, 2) / 16), persistent=False)

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return (positions[..., None] * self.inv_freq).cos()


def _inputs() -> tuple[torch.Tensor, ...]:
    return (torch.arange(40.0, dtype=torch.float64)[None],)


class _Inside(nn.Module):
    def __init__(self, base: float = 5e5) -> None:
        super().__init__()
        self.base = base

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        frequencies = self.base ** (-torch.arange(0, 16, 2, dtype=positions.dtype) / 16)
        return (positions[..., None] * frequencies).cos()


class RotaryBase(Pattern):
    """Another base of the rotary frequencies.

    **What it is.** theta is 10,000 in Llama 2 and by default, 500,000 in Llama 3, 1,000,000 in Qwen and
    in Gemma's global layers. The first positions hardly show it, the hundredth does.

    **What to do.** Take `rope_theta` (and `rope_scaling`) of the configuration.
    """

    name = "rotary-base"
    rank = 0
    examples = (
        Example(_Truth, lambda twin: _Truth(1e4), _inputs, "base 10000"),
        Example(_Inside, lambda twin: _Inside(1e4), _inputs, "base 10000"),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the usual bases, in buffers of frequencies and where a number is raised to powers."""
        buffers = [
            (part, name, tensor)
            for part in scene.parts
            for name, tensor in part.module.named_buffers(recurse=False)
            if "inv_freq" in name and tensor.ndim == 1 and not name.startswith("original")
        ]
        for part, name, tensor in buffers:
            for base in _USUAL:
                new = base ** (-torch.arange(len(tensor), dtype=torch.float64) / len(tensor))
                if not torch.allclose(new, tensor.double(), rtol=1e-4):
                    set_to = partial(weight, part.module, name, partial(_instead, new))
                    yield Variant(
                        f"{{side}}'s rotary frequencies have the base {base:g} in {part.name}",
                        set_to,
                    )
        for base in _USUAL:
            for where, change in scene.replaced(partial(_products, base), each=False):
                yield Variant(
                    f"{{side}}'s rotary frequencies have the base {base:g}{where}", change
                )


def _instead(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    return new.to(old.dtype)


def _products(base: float) -> Mapping[str, Handler]:
    """Functions that multiply by frequencies, with those of another base."""

    def handle(call: FunctionCall) -> Any:
        args = tuple(_with_base(one, base) for one in call.args)
        if all(one is other for one, other in zip(args, call.args, strict=True)):
            return call.run()
        return call.function(*args, **call.kwargs)

    return dict.fromkeys(("mul", "matmul", "outer", "ger", "einsum"), handle)


def _with_base(argument: Any, base: float) -> Any:
    """Frequencies b^(-i/n) along the only axis that is longer than one, with another b."""
    if not torch.is_tensor(argument) or not argument.is_floating_point() or argument.numel() < 2:
        return argument
    if max(argument.shape) != argument.numel():
        return argument
    flat = argument.flatten().double()
    steps = flat[1:] / flat[:-1]
    falls = bool(((flat[0] - 1).abs() < 1e-6) & (steps[0] < 0.95) & (steps[0] > 1e-6))
    if not falls or not torch.allclose(steps, steps[:1].expand_as(steps), rtol=1e-4):
        return argument
    count = len(flat)
    old = float(flat[1]) ** -count
    if count == 2 and not any(abs(old / usual - 1) < 1e-3 for usual in _USUAL):
        return argument  # two numbers are no series
    new = base ** (-torch.arange(count, dtype=torch.float64) / count)
    return new.reshape(argument.shape).to(argument.dtype)
