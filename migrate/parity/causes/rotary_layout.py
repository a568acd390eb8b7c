"""Rotary positions turn halves, or neighbours."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.changes import attribute
from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant
from migrate.parity.causes.frame.scene import Scene


class _Truth(nn.Module):
    def forward(self, q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        a, b = q.chunk(2, -1)
        return q * cos + torch.cat((-b, a), -1) * sin


class _Faulty(nn.Module):
    def forward(self, q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        a, b = q[..., ::2], q[..., 1::2]  # neighbours
        cos, sin = cos[..., :4], sin[..., :4]
        return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)


def _inputs() -> tuple[torch.Tensor, ...]:
    angles = torch.arange(6.0).outer(10000.0 ** (-torch.arange(4) / 4)).repeat(1, 2).double()
    return torch.randn(2, 6, 8, dtype=torch.float64), angles.cos(), angles.sin()


class RotaryLayout(Pattern):
    """Rotary positions turn the two halves of a head against each other, or neighbours.

    **What it is.** Hugging Face's Llama, GPT-NeoX and Gemma pair feature i with i + d/2 (`rotate_half`);
    Meta's own Llama, GPT-J and RoFormer pair neighbours, 2i with 2i + 1. Checkpoints of one are permuted
    for the other: code and weights must be of the same kind. With a handful of tokens the difference is
    small.

    **What to do.** Turn what the weights were made for, or permute the rows of the query's and the key's
    kernels.
    """

    name = "rotary-layout"
    rank = 0
    examples = (Example(_Truth, lambda twin: _Faulty(), _inputs, "turns neighbours"),)

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the other layout, with cos and sin for it or not, of functions that turn."""
        text = "{side} turns neighbours by the rotary angles, the truth halves"
        for where, change in scene.replaced(_of_neighbours, each=False):
            yield Variant(text + where, change)
        for where, change in scene.replaced(_turned_neighbours, each=False):
            yield Variant(f"{text} (with the angles of halves){where}", change)
        for module in _with_function(scene, "apply_rotary_pos_emb"):
            change = partial(attribute, module, "apply_rotary_pos_emb", _by_pairs(module))
            yield Variant(f"{text}, in apply_rotary_pos_emb", change)


def _turned_neighbours() -> Mapping[str, Handler]:
    """cat(-b, a) of halves becomes that of neighbours."""
    negative: list[Any] = []

    def cat(call: FunctionCall) -> Any:
        if not _turns(call, negative):
            return call.run()
        minus_b, a = call.args[0]
        x = torch.cat((a, -minus_b), -1)
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)

    return {"neg": partial(_noted, negative), "cat": cat}


def _of_neighbours() -> Mapping[str, Handler]:
    """x * cos + cat(-b, a) * sin of halves becomes that of neighbours: angles are spread too."""
    turned = _turned_neighbours()

    def mul(call: FunctionCall) -> Any:
        other = call.get(1, "other")
        angles = (
            torch.is_tensor(other)
            and _are_angles(other)
            and other.shape[-1] == call.args[0].shape[-1]
        )
        return call.but(1, "other", _spread(other)).run() if angles else call.run()

    return {**turned, "mul": mul}


def _noted(seen: list[Any], call: FunctionCall) -> Any:
    seen.append(call.run())
    return seen[-1]


def _turns(call: FunctionCall, negative: list[Any]) -> bool:
    parts = call.get(0, "tensors")
    two = isinstance(parts, tuple | list) and len(parts) == 2 and parts[0].shape == parts[1].shape
    return two and any(one is parts[0] for one in negative)


def _are_angles(tensor: torch.Tensor) -> bool:
    """Whether it is a cosine or sine with the same values in both halves."""
    size = tensor.shape[-1] if tensor.ndim >= 2 else 1
    if size % 2 or bool((tensor.abs() > 1 + 1e-6).any()):
        return False
    return torch.equal(tensor[..., : size // 2], tensor[..., size // 2 :])


def _spread(angles: torch.Tensor) -> torch.Tensor:
    """Of halves, for neighbours."""
    return angles[..., : angles.shape[-1] // 2].repeat_interleave(2, -1)


def _with_function(scene: Scene, name: str) -> Iterator[Any]:
    modules = {type(part.module).__module__ for part in scene.parts}
    yield from (sys.modules[one] for one in sorted(modules) if hasattr(sys.modules[one], name))


def _by_pairs(module: Any) -> Callable[..., Any]:
    """`apply_rotary_pos_emb` of neighbours: features go to halves, are turned, and go back."""
    turn = module.apply_rotary_pos_emb

    def turned(q: Any, k: Any, *args: Any, **kwargs: Any) -> Any:
        halves = [torch.cat((one[..., ::2], one[..., 1::2]), -1) for one in (q, k)]
        return tuple(
            torch.stack(one.chunk(2, -1), -1).flatten(-2) for one in turn(*halves, *args, **kwargs)
        )

    return turned
