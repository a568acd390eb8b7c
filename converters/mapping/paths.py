"""Where a torch module's weights live in a Flax pytree: the names that linen gives in `setup`.

    self.dense = nn.Linear(…)              dense
    self.layer = nn.ModuleList([…])        layer_0, layer_1, …      (self.layer = [...] in setup)
    self.heads = nn.ModuleDict({"a": …})   heads_a                  (self.heads = {...} in setup)
    self.net = nn.Sequential(…)            net/layers_0, …          (flax.linen.Sequential)
    a Sequential as the whole model        layers_0, …

A list or dict is no module in linen: its children belong to the module that holds it, under the
attribute's name and theirs joined by `_`, however deeply such containers are nested.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Place:
    """The place of one module in the pytree.

    Attributes:
        scope: path of the linen module that this one's name is written in.
        name: its name there; "" for the whole model.
    """

    scope: tuple[str, ...] = ()
    name: str = ""

    @property
    def path(self) -> tuple[str, ...]:
        """The path of the module's own weights."""
        return (*self.scope, self.name) if self.name else self.scope

    def child(self, parent: Any, name: str, index: int) -> Place:
        """The place of the child at position `index` of `parent`, the torch module placed here."""
        import torch

        if is_container(parent):
            return Place(self.scope, f"{self.name}_{name}" if self.name else name)
        if isinstance(parent, torch.nn.Sequential):
            return Place(self.path, f"layers_{index}")
        return Place(self.path, name)

    def weight(self, parent: Any, name: str) -> str:
        """The `/`-joined path (without collection) of a tensor that `parent` itself holds."""
        place = self.child(parent, name, 0) if is_container(parent) else Place(self.path, name)
        return "/".join(place.path)


def is_container(module: Any) -> bool:
    """Whether linen writes this module as a plain list or dict, which adds no level."""
    from torch import nn

    return isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict))
