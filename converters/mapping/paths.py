"""Paths of a torch module's weights in a Flax pytree: the names that Flax gives to its attributes.

    attribute of the torch module          linen                      nnx
    self.dense = nn.Linear(…)              dense                      dense
    self.layer = nn.ModuleList([…])        layer_0, layer_1, …        layer/0, layer/1, …
    self.heads = nn.ModuleDict({"a": …})   heads_a                    heads/a
    self.net = nn.Sequential(…)            net/layers_0, …            net/layers/0, …
    a Sequential as the whole model        layers_0, …                layers/0, …
    class Blocks(nn.ModuleList) that is    blocks/layers_0, …         blocks/layers/0, …
    called: it has a forward of its own
    class Parts(nn.ModuleDict), likewise   parts/a                    parts/a

linen's names are those of `setup`: a list or dict is not a module there. Its children belong to the
module that holds it, under the attribute's name and theirs joined by `_`, at any depth of nesting.
nnx keeps lists and dicts (`nnx.List`, `nnx.Dict`) as separate levels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from converters.layers.flax_call import Api as Api


@dataclass(frozen=True)
class ModuleLocation:
    """Location of a module in the pytree.

    Attributes:
        api: the Flax API of the names.
        scope: the path of the enclosing Flax module.
        name: its name in the scope; "" for the whole model.
    """

    api: Api = "linen"
    scope: tuple[str, ...] = ()
    name: str = ""

    @property
    def path(self) -> tuple[str, ...]:
        """Path of the module's own weights."""
        return (*self.scope, self.name) if self.name else self.scope

    def child(self, parent: Any, name: str, index: int) -> ModuleLocation:
        """Return the location of the child at position `index` of the torch module `parent`."""
        if has_layers(parent):
            if self.api == "nnx":
                return ModuleLocation(self.api, (*self.path, "layers"), str(index))
            return ModuleLocation(self.api, self.path, f"layers_{index}")
        if is_container(parent) and self.api == "linen":
            return ModuleLocation(
                self.api, self.scope, f"{self.name}_{name}" if self.name else name
            )
        return ModuleLocation(self.api, self.path, name)

    def weight(self, parent: Any, name: str) -> str:
        """Return the `/`-joined path (without collection) of a tensor that `parent` holds directly."""
        if is_container(parent):
            return "/".join(self.child(parent, name, 0).path)
        return "/".join((*self.path, name))


def is_container(module: Any) -> bool:
    """Whether this module is a plain list or dict, which adds no level in linen."""
    from torch import nn

    kinds = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
    return isinstance(module, kinds) and not _is_called(module)


def has_layers(module: Any) -> bool:
    """Whether the children of this module are the list `layers` of its Flax module."""
    from torch import nn

    called = isinstance(module, nn.ModuleList) and _is_called(module)
    return isinstance(module, nn.Sequential) or called


def _is_called(module: Any) -> bool:
    """Whether a module has a forward; torch's own lists and dicts do not."""
    from torch import nn

    return type(module).forward is not nn.Module.forward
