"""The two halves of a tensor exchanged: gate and value, forward and backward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import Array, Example, Pattern, Variant, loaded, normal
from migrate.parity.causes.frame.scene import Scene

_MOST = 32  # pairs


def _truth() -> nn.Module:
    return nn.GLU()


class _Faulty(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, value = x.chunk(2, -1)
        return value * torch.sigmoid(gate)


class _SwiGlu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 24), nn.Linear(12, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, value = self.up(x).chunk(2, -1)
        return self.down(nn.functional.silu(gate) * value)


class _Other(_SwiGlu):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value, gate = self.up(x).chunk(2, -1)
        return self.down(nn.functional.silu(gate) * value)


class _Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class _Exchanged(_Branches):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.silu(self.up(x)) * self.gate(x))


class SwappedHalves(Pattern):
    """Two halves are exchanged: gate and value, or forward and backward.

    **What it is.** `F.glu` takes the *second* half for the gate, SwiGLU of Llama's fused kernels the
    first; a port that splits as (value, gate), or gives two projections of the same shape to each other's
    place, has no error of shape. A bidirectional layer's halves are forward and backward.

    **What to do.** Exchange the names of the split, or the halves of the kernel.
    """

    name = "swapped-halves"
    rank = 0
    examples = (
        Example(_truth, lambda twin: _Faulty(), normal(4, 16), "exchanged"),
        Example(
            _SwiGlu,
            lambda twin: loaded(_Other(), twin),
            normal(4, 8),
            "exchanged",
            layer="down",
            locally=False,
        ),
        Example(
            _Branches,
            lambda twin: loaded(_Exchanged(), twin),
            normal(4, 8),
            "gate and up take each other's place",
            layer="down",
            locally=False,
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield splits in the reverse order, and layers that give what another gives."""
        for where, change in scene.replaced(_reversed):
            yield Variant(f"the two halves are exchanged in {{side}}{where}", change)
        yield Variant(
            "the two halves of the last axis are exchanged in {side}, {where}", adjust=_halves
        )
        for a, b in _beside(scene):
            yield Variant(
                f"{a[0]} and {b[0]} take each other's place in {{side}}",
                partial(scene.replay.exchanged, a, b),
            )


def _beside(scene: Scene) -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
    """Calls of layers inside that give the same shape, and of which none is given what the other gives."""
    made = list(scene.replay.outputs())
    taken = [(spot.layer, tensor) for spot, tensor in scene.replay.truth.items() if spot.layer]
    pairs = ((a, b) for n, a in enumerate(made) for b in made[n + 1 :] if a[0] != b[0])
    for a, b in islice((pair for pair in pairs if pair[0][3].shape == pair[1][3].shape), _MOST):
        inner = [one for name, one in taken if name == b[0] and one.shape == a[3].shape]
        if not any(torch.equal(one, a[3]) for one in inner):
            yield a[:2], b[:2]


def _reversed() -> Mapping[str, Handler]:
    def split(call: FunctionCall) -> Any:
        parts = call.run()
        same = len(parts) == 2 and parts[0].shape == parts[1].shape
        return tuple(reversed(parts)) if same else parts

    def glu(call: FunctionCall) -> Any:
        axis = call.get(1, "dim", -1)
        return call.but(0, "input", torch.cat(call.args[0].chunk(2, axis)[::-1], axis)).run()

    return {"glu": glu, **dict.fromkeys(("chunk", "split", "unbind", "tensor_split"), split)}


def _halves(given: Array, _mine: Array) -> Array | None:
    size = given.shape[-1] if given.ndim else 1
    return np.roll(given, size // 2, -1) if size % 2 == 0 else None
