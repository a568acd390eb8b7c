"""The head has the embedding's weights, or not."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import nn

from migrate.parity.causes.frame.changes import weight
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant
from migrate.parity.causes.frame.scene import Scene


class _Truth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids))


def _faulty(twin: nn.Module) -> nn.Module:
    twin.head.weight = twin.embed.weight
    return twin


def _inputs() -> tuple[torch.Tensor, ...]:
    return (torch.randint(0, 20, (2, 7)),)


class TiedWeights(Pattern):
    """The head has the embedding's weights on one side only.

    **What it is.** `tie_word_embeddings` differs: the port multiplies by the embedding (`embed.attend` in
    linen), while the checkpoint has a head of its own. (The reverse, a head that kept its initial weights
    since the checkpoint has no key for it, is other-weights.)

    **What to do.** Take the setting from the configuration of the checkpoint.
    """

    name = "tied-weights"
    rank = 0
    examples = (Example(_Truth, _faulty, _inputs, "has the weights of embed", layer="head"),)

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield heads with the weights of each embedding of their size."""
        for part in scene.parts:
            if not isinstance(part.module, nn.Linear):
                continue
            for name, module in scene.model.named_modules():
                if (
                    isinstance(module, nn.Embedding)
                    and module.weight.shape == part.module.weight.shape
                ):
                    change = partial(weight, part.module, "weight", partial(_taken, module))
                    yield Variant(f"{part.name} has the weights of {name} in {{side}}", change)

    def suspected(self, scene: Scene) -> str:
        """Say that the truth's weights are shared: a checkpoint has one name for the two."""
        for part in scene.parts:
            shared = getattr(part.module, "weight", None)
            for name, module in scene.model.named_modules() if shared is not None else ():
                if module is not part.module and getattr(module, "weight", None) is shared:
                    return f"{part.name} has the weights of {name} in the truth, and others in {{side}}"
        return ""


def _taken(module: nn.Embedding, _tensor: torch.Tensor) -> torch.Tensor:
    return module.weight.data
