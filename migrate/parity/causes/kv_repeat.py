"""Which query heads share a key head."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import nn

from migrate.parity.causes.frame.changes import attribute
from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant
from migrate.parity.causes.frame.scene import Scene


class _Truth(nn.Module):
    def forward(self, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        kv = kv.repeat_interleave(2, dim=1)
        return F.scaled_dot_product_attention(q, kv, kv)


class _Faulty(nn.Module):
    def forward(self, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        kv = kv.repeat(1, 2, 1, 1)
        return F.scaled_dot_product_attention(q, kv, kv)


def _inputs() -> tuple[torch.Tensor, ...]:
    q, kv = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8)
    return q.double(), kv.double()


class KvRepeat(Pattern):
    """Other query heads share a key head.

    **What it is.** With grouped queries each key head serves several query heads: neighbours (Llama:
    `repeat_interleave`, `jnp.repeat`), or every n-th (`repeat`, `jnp.tile`, which look the same by
    shape).

    **What to do.** `jnp.repeat(k, n, axis=heads)`, not `jnp.tile`.
    """

    name = "kv-repeat"
    rank = 0
    examples = (
        Example(_Truth, lambda twin: _Faulty(), _inputs, "shares its keys among every n-th head"),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the other repetition: of `repeat_interleave`, of attention, of a function `repeat_kv`."""
        text = "{side} shares its keys among every n-th head, the truth among neighbours"
        for where, change in scene.replaced(lambda: {"repeat_interleave": _tiled}):
            yield Variant(text + where, change)
        for where, change in scene.replaced(_grouped):
            yield Variant(f"{text}, in attention{where}", change)
        for module in _with_function(scene):
            yield Variant(
                f"{text}, in repeat_kv", partial(attribute, module, "repeat_kv", _repeat_kv)
            )


def _tiled(call: FunctionCall) -> Any:
    times, axis = call.get(1, "repeats"), call.get(2, "dim")
    if not isinstance(times, int) or axis is None:
        return call.run()
    return torch.cat([call.args[0]] * times, axis)


def _grouped() -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        q, k, v = call.args[:3]
        times = q.shape[-3] // k.shape[-3]
        if not call.get(7, "enable_gqa", False) or times < 2:
            return call.run()
        k, v = (torch.cat([one] * times, -3) for one in (k, v))
        return call.but(1, "key", k).but(2, "value", v).but(7, "enable_gqa", False).run()

    return {"scaled_dot_product_attention": handle}


def _with_function(scene: Scene) -> Iterator[Any]:
    names = {type(part.module).__module__ for part in scene.parts}
    found: Callable[[Any], bool] = lambda module: hasattr(module, "repeat_kv")  # noqa: E731
    yield from filter(found, (sys.modules[name] for name in sorted(names)))


def _repeat_kv(hidden_states: torch.Tensor, n_rep: int) -> torch.Tensor:
    return torch.cat([hidden_states] * n_rep, 1)
