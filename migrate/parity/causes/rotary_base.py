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
        angles = positions[..., None] / self.base ** (
            torch.arange(0, 16, 2, dtype=positions.dtype) / 16
        )
        return angles.cos()


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
        olds = {one for call in scene.calls("pow", "rpow") if (one := _base(call)) is not None}
        for number in sorted(olds):
            for base in (other for other in _USUAL if other != number):
                for where, change in scene.replaced(partial(_powers, number, base), each=False):
                    text = f"{{side}}'s rotary frequencies have the base {base:g}, the truth {number:g}"
                    yield Variant(text + where, change)


def _instead(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    return new.to(old.dtype)


def _base(call: FunctionCall) -> float | None:
    """The number that is raised to powers in a tensor."""
    first, second = (*call.args, None)[:2]
    number = second if call.name == "rpow" else first
    return float(number) if isinstance(number, int | float) and number >= 100 else None


def _powers(old: float, new: float) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        if _base(call) != old:
            return call.run()
        return call.but(1 if call.name == "rpow" else 0, "", new).run()

    return {"pow": handle, "rpow": handle}
