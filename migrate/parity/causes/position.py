"""Positions: where they begin, and how rotary ones turn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from migrate.parity.causes.frame.changes import attribute, weight
from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import Array, FaultExample, Pattern, Variant, loaded
from migrate.parity.causes.frame.scene import Scene


class _PositionOffsetTruth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(20, 8), nn.Embedding(12, 8)
        self.first = 0

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.words(ids) + self.positions(torch.arange(ids.shape[1]) + self.first)


def _faulty(twin: nn.Module) -> nn.Module:
    twin.first = 2
    return twin


class _Function(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(12, 8))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(ids, self.table)


class _Later(_Function):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(ids + 1, self.table)


def _position_offset_inputs() -> tuple[torch.Tensor, ...]:
    return (torch.randint(0, 10, (2, 7)),)


class PositionOffset(Pattern):
    """Positions that begin elsewhere.

    **What it is.** RoBERTa's positions begin at `padding_idx + 1`, OPT's and BART's tables have two rows
    more in front; with padding on the left they begin where the text does. One off, and each token has
    its neighbor's position.

    **What to do.** Compare the position ids themselves.
    """

    name = "position-offset"
    examples = (
        FaultExample(
            _PositionOffsetTruth,
            _faulty,
            _position_offset_inputs,
            "2 more",
            layer="positions",
            locally=False,
        ),
        FaultExample(
            _Function, lambda twin: loaded(_Later(), twin), _position_offset_inputs, "1 more"
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield integers with an offset, both as arguments and as looked-up positions."""
        for offset in (1, -1, 2, -2):
            words = f"{abs(offset)} {'more' if offset > 0 else 'less'} than the truth's"
            yield Variant(f"the positions of {{side}} are {words}", adjust=partial(_moved, offset))
            for where, change in scene.replaced(partial(_looked_up, offset)):
                yield Variant(f"the positions that {{side}} looks up are {words}{where}", change)
            for path, tensor in scene.given():
                if not tensor.is_floating_point() and "position" in path:
                    change = partial(scene.replay.fed, partial(_fed, path, offset))
                    yield Variant(f"the positions of {{side}} ({path}) are {words}", change)


def _moved(offset: int, output: Array, _mine: Array) -> Array | None:
    whole = output.size > 1 and bool((output == np.round(output)).all())
    return output + offset if whole else None


def _looked_up(offset: int) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        rows = call.get(1, "weight").shape[0]
        return call.but(0, "input", (call.args[0] + offset).clamp(0, rows - 1)).run()

    return {"embedding": handle}


def _fed(wanted: str, offset: int, path: str, tensor: torch.Tensor) -> torch.Tensor:
    return (tensor + offset).clamp_min(0) if path == wanted else tensor


_USUAL = (1e4, 5e5, 1e6, 1e5, 1e7, 2e4, 2.5e5, 5e4, 150000.0, 100.0)


class _RotaryBaseTruth(nn.Module):
    def __init__(self, base: float = 5e5) -> None:
        super().__init__()
        self.register_buffer("inv_freq", base ** (-torch.arange(0, 16, 2) / 16), persistent=False)

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return (positions[..., None] * self.inv_freq).cos()


def _rotary_base_inputs() -> tuple[torch.Tensor, ...]:
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
    examples = (
        FaultExample(
            _RotaryBaseTruth, lambda twin: _RotaryBaseTruth(1e4), _rotary_base_inputs, "base 10000"
        ),
        FaultExample(_Inside, lambda twin: _Inside(1e4), _rotary_base_inputs, "base 10000"),
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
    """Handlers of functions that multiply by frequencies: they take frequencies of another base."""

    def handle(call: FunctionCall) -> Any:
        args = tuple(_with_base(argument, base) for argument in call.args)
        if all(argument is other for argument, other in zip(args, call.args, strict=True)):
            return call.run()
        return call.function(*args, **call.kwargs)

    return dict.fromkeys(("mul", "matmul", "outer", "ger", "einsum"), handle)


def _with_base(argument: Any, base: float) -> Any:
    """Frequencies b^(-i/n) along the only axis longer than 1, with another base b."""
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
        return argument  # two numbers show no series
    new = base ** (-torch.arange(count, dtype=torch.float64) / count)
    return new.reshape(argument.shape).to(argument.dtype)


class _RotaryLayoutTruth(nn.Module):
    def forward(self, q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        a, b = q.chunk(2, -1)
        return q * cos + torch.cat((-b, a), -1) * sin


class _RotaryLayoutBackwards(nn.Module):
    def forward(self, q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        a, b = q.chunk(2, -1)
        return q * cos + torch.cat((b, -a), -1) * sin


class _Pairs(nn.Module):
    def forward(self, q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        turned = torch.stack((-q[..., 1::2], q[..., ::2]), -1).flatten(-2)
        cos, sin = (angles[..., :4].repeat_interleave(2, -1) for angles in (cos, sin))
        return q * cos + turned * sin


class _Parts(nn.Module):
    def forward(self, q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        a, b = q.chunk(2, -1)
        cos, sin = cos[..., :4], sin[..., :4]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class _PartsBackwards(nn.Module):
    def forward(self, q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        a, b = q.chunk(2, -1)
        cos, sin = cos[..., :4], sin[..., :4]
        return torch.cat((a * cos + b * sin, b * cos - a * sin), -1)


class _RotaryLayoutFaulty(nn.Module):
    def forward(self, q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        a, b = q[..., ::2], q[..., 1::2]  # neighbors
        cos, sin = cos[..., :4], sin[..., :4]
        return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)


def _rotary_layout_inputs() -> tuple[torch.Tensor, ...]:
    angles = torch.arange(6.0).outer(10000.0 ** (-torch.arange(4) / 4)).repeat(1, 2).double()
    return torch.randn(2, 6, 8, dtype=torch.float64), angles.cos(), angles.sin()


class RotaryLayout(Pattern):
    """Rotary positions turn the two halves of a head against each other, or neighbors, or the other way.

    **What it is.** Hugging Face's Llama, GPT-NeoX and Gemma pair feature i with i + d/2 (`rotate_half`);
    Meta's own Llama, GPT-J and RoFormer pair neighbors, 2i with 2i + 1. Checkpoints of one are permuted
    for the other: code and weights must be of the same kind. With a handful of tokens the difference is
    small. Written by hand, they may turn the other way, or the other half is negated: `(-b, a)` is what
    `rotate_half` gives.

    **What to do.** Turn what the weights were made for, or permute the rows of the query's and the key's
    kernels.
    """

    name = "rotary-layout"
    examples = (
        FaultExample(
            _RotaryLayoutTruth,
            lambda twin: _RotaryLayoutFaulty(),
            _rotary_layout_inputs,
            "turns neighbors",
        ),
        FaultExample(
            _Pairs, lambda twin: _RotaryLayoutTruth(), _rotary_layout_inputs, "turns halves"
        ),
        FaultExample(
            _RotaryLayoutTruth,
            lambda twin: _RotaryLayoutBackwards(),
            _rotary_layout_inputs,
            "the other way",
        ),
        FaultExample(
            _Parts, lambda twin: _PartsBackwards(), _rotary_layout_inputs, "the other way"
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the other layout, with cos and sin for it or not, of functions that turn."""
        text = "{side} turns neighbors by the rotary angles, the truth halves"
        for where, change in scene.replaced(_of_neighbors, each=False):
            yield Variant(text + where, change)
        for where, change in scene.replaced(_turned_neighbors, each=False):
            yield Variant(f"{text} (with the angles of halves){where}", change)
        for where, change in scene.replaced(_of_halves, each=False):
            yield Variant(
                f"{{side}} turns halves by the rotary angles, the truth neighbors{where}", change
            )
        for words, make in _TURNS.items():
            for where, change in scene.replaced(partial(_turned, make), each=False):
                yield Variant(f"{{side}} {words}{where}", change)
        for where, change in scene.replaced(_parts_backwards, each=False):
            yield Variant(f"{{side}} turns by the rotary angles the other way{where}", change)
        for module in _with_function(scene, "apply_rotary_pos_emb"):
            change = partial(attribute, module, "apply_rotary_pos_emb", _by_pairs(module))
            yield Variant(f"{text}, in apply_rotary_pos_emb", change)


def _turned_neighbors() -> Mapping[str, Handler]:
    """Turn cat(-b, a) of halves into that of neighbors."""
    negative: list[Any] = []

    def cat(call: FunctionCall) -> Any:
        if not _turns(call, negative):
            return call.run()
        minus_b, a = call.args[0]
        x = torch.cat((a, -minus_b), -1)
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)

    return {"neg": partial(_noted, negative), "cat": cat}


# Turned features from the parts b and a, from which the truth makes (-b, a).
_TURNS: Mapping[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "turns by the rotary angles the other way: (b, -a), the truth (-b, a)": lambda b, a: (b, -a),
    "negates the other half in the rotary turn: (-a, b), the truth (-b, a)": lambda b, a: (-a, b),
    "negates neither half in the rotary turn: (b, a), the truth (-b, a)": lambda b, a: (b, a),
}


def _turned(make: Callable[[Any, Any], tuple[Any, Any]]) -> Mapping[str, Handler]:
    """Turn cat or stack of (-b, a) into another function of b and a."""
    negative: list[Any] = []

    def join(call: FunctionCall) -> Any:
        if not _turns(call, negative):
            return call.run()
        minus_b, a = call.args[0]
        return call.function(make(-minus_b, a), *call.args[1:], **call.kwargs)

    return {"neg": partial(_noted, negative), "cat": join, "stack": join}


def _parts_backwards() -> Mapping[str, Handler]:
    """Turn a * cos - b * sin and b * cos + a * sin into the sum and the difference."""
    turned: list[Any] = []

    def mul(call: FunctionCall) -> Any:
        other = call.get(1, "other")
        product = call.run()
        if torch.is_tensor(other) and not bool((other.abs() > 1 + 1e-6).any()):
            turned.append(product)
        return product

    def join(replacement: Any, call: FunctionCall) -> Any:
        terms = (call.args[0], call.get(1, "other"))
        if not all(any(term is product for product in turned) for term in terms):
            return call.run()
        return replacement(*terms)

    return {"mul": mul, "sub": partial(join, torch.add), "add": partial(join, torch.sub)}


def _of_halves() -> Mapping[str, Handler]:
    """Turn x * cos + stack(-b, a) * sin of neighbors into that of halves: angles are put side by side."""
    negative: list[Any] = []

    def stack(call: FunctionCall) -> Any:
        if not _turns(call, negative):
            return call.run()
        minus_b, a = call.args[0]
        x = torch.stack((a, -minus_b), -1).flatten(-2)
        first, second = x.chunk(2, -1)
        return torch.cat((-second, first), -1).unflatten(-1, (-1, 2))

    def mul(call: FunctionCall) -> Any:
        other = call.get(1, "other")
        if not torch.is_tensor(other) or not _are_pairs(other):
            return call.run()
        if other.shape[-1] != call.args[0].shape[-1]:
            return call.run()
        return call.but(1, "other", torch.cat((other[..., ::2],) * 2, -1)).run()

    return {"neg": partial(_noted, negative), "stack": stack, "mul": mul}


def _are_pairs(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a cosine or sine with the same values for both neighbors."""
    if tensor.ndim < 2 or tensor.shape[-1] % 2 or bool((tensor.abs() > 1 + 1e-6).any()):
        return False
    return torch.equal(tensor[..., ::2], tensor[..., 1::2])


def _of_neighbors() -> Mapping[str, Handler]:
    """Turn x * cos + cat(-b, a) * sin of halves into that of neighbors: angles are spread too."""
    turned = _turned_neighbors()

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
    return two and any(tensor is parts[0] for tensor in negative)


def _are_angles(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a cosine or sine with the same values in both halves."""
    size = tensor.shape[-1] if tensor.ndim >= 2 else 1
    if size % 2 or bool((tensor.abs() > 1 + 1e-6).any()):
        return False
    return torch.equal(tensor[..., : size // 2], tensor[..., size // 2 :])


def _spread(angles: torch.Tensor) -> torch.Tensor:
    """Spread the angles of halves over neighbors."""
    return angles[..., : angles.shape[-1] // 2].repeat_interleave(2, -1)


def _with_function(scene: Scene, name: str) -> Iterator[Any]:
    modules = {type(part.module).__module__ for part in scene.parts}
    yield from (
        sys.modules[module_name]
        for module_name in sorted(modules)
        if hasattr(sys.modules[module_name], name)
    )


def _by_pairs(module: Any) -> Callable[..., Any]:
    """`apply_rotary_pos_emb` of neighbors: move features to halves, turn them, and move them back."""
    turn = module.apply_rotary_pos_emb

    def turned(q: Any, k: Any, *args: Any, **kwargs: Any) -> Any:
        halves = [torch.cat((tensor[..., ::2], tensor[..., 1::2]), -1) for tensor in (q, k)]
        return tuple(
            torch.stack(turned_half.chunk(2, -1), -1).flatten(-2)
            for turned_half in turn(*halves, *args, **kwargs)
        )

    return turned
