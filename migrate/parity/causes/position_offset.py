"""Positions that begin elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import Array, Example, Pattern, Variant, loaded
from migrate.parity.causes.frame.scene import Scene


class _Truth(nn.Module):
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


def _inputs() -> tuple[torch.Tensor, ...]:
    return (torch.randint(0, 10, (2, 7)),)


class PositionOffset(Pattern):
    """Positions that begin elsewhere.

    **What it is.** RoBERTa's positions begin at `padding_idx + 1`, OPT's and BART's tables have two rows
    more in front; with padding on the left they begin where the text does. One off, and each token has
    its neighbour's position.

    **What to do.** Compare the position ids themselves.
    """

    name = "position-offset"
    rank = 0
    examples = (
        Example(_Truth, _faulty, _inputs, "2 more", layer="positions", locally=False),
        Example(_Function, lambda twin: loaded(_Later(), twin), _inputs, "1 more"),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield whole numbers with an offset: those given, and those that are looked up."""
        for offset in (1, -1, 2, -2):
            words = f"{abs(offset)} {'more' if offset > 0 else 'less'} than the truth's"
            yield Variant(f"the positions of {{side}} are {words}", adjust=partial(_moved, offset))
            for where, change in scene.replaced(partial(_looked_up, offset)):
                yield Variant(f"the positions that {{side}} looks up are {words}{where}", change)
            for path, tensor in scene.given():
                if not tensor.is_floating_point() and "position" in path:
                    change = partial(scene.replay.fed, partial(_fed, path, offset))
                    yield Variant(f"the positions of {{side}} ({path}) are {words}", change)


def _moved(offset: int, given: Array, _mine: Array) -> Array | None:
    whole = given.size > 1 and bool((given == np.round(given)).all())
    return given + offset if whole else None


def _looked_up(offset: int) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        rows = call.get(1, "weight").shape[0]
        return call.but(0, "input", (call.args[0] + offset).clamp(0, rows - 1)).run()

    return {"embedding": handle}


def _fed(wanted: str, offset: int, path: str, tensor: torch.Tensor) -> torch.Tensor:
    return (tensor + offset).clamp_min(0) if path == wanted else tensor
