"""Where a torch module's weights live in a Flax pytree: the names that Flax gives to its attributes.

    attribute of the torch module          linen                      nnx
    self.dense = nn.Linear(…)              dense                      dense
    self.layer = nn.ModuleList([…])        layer_0, layer_1, …        layer/0, layer/1, …
    self.heads = nn.ModuleDict({"a": …})   heads_a                    heads/a
    self.net = nn.Sequential(…)            net/layers_0, …            net/layers/0, …
    a Sequential as the whole model        layers_0, …                layers/0, …
    class Blocks(nn.ModuleList) that is    blocks/layers_0, …         blocks/layers/0, …
    called: it has a forward of its own
    class Parts(nn.ModuleDict), likewise   parts/a                    parts/a

linen's are those of `setup`: a list or dict is no module there, so its children belong to the module that
holds it, under the attribute's name and theirs joined by `_`, however deeply such containers are nested.
nnx keeps lists and dicts (`nnx.List`, `nnx.Dict`) as levels of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from converters.layers.flax_call import Api as Api


@dataclass(frozen=True)
class ModuleLocation:
    """The place of one module in the pytree.

    Attributes:
        api: whose names these are.
        scope: path of the Flax module that this one's name is written in.
        name: its name there; "" for the whole model.
    """

    api: Api = "linen"
    scope: tuple[str, ...] = ()
    name: str = ""

    @property
    def path(self) -> tuple[str, ...]:
        """The path of the module's own weights."""
        return (*self.scope, self.name) if self.name else self.scope

    def child(self, parent: Any, name: str, index: int) -> ModuleLocation:
        """The place of the child at position `index` of `parent`, the torch module placed here."""
        if has_layers(parent):
            if self.api == "nnx":
                return ModuleLocation(self.api, (*self.path, "layers"), str(index))
            return ModuleLocation(self.api, self.path, f"layers_{index}")
        if is_container(parent) and self.api == "linen":
            return ModuleLocation(self.api, self.scope, f"{self.name}_{name}" if self.name else name)
        return ModuleLocation(self.api, self.path, name)

    def weight(self, parent: Any, name: str) -> str:
        """The `/`-joined path (without collection) of a tensor that `parent` itself holds."""
        if is_container(parent):
            return "/".join(self.child(parent, name, 0).path)
        return "/".join((*self.path, name))


def is_container(module: Any) -> bool:
    """Whether this module is a plain list or dict, which in linen adds no level."""
    from torch import nn

    kinds = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
    return isinstance(module, kinds) and not _is_called(module)


def has_layers(module: Any) -> bool:
    """Whether the parts of this module are the list `layers` of its Flax module."""
    from torch import nn

    called = isinstance(module, nn.ModuleList) and _is_called(module)
    return isinstance(module, nn.Sequential) or called


def _is_called(module: Any) -> bool:
    """Whether a module has a forward; torch's own lists and dicts have none."""
    from torch import nn

    return type(module).forward is not nn.Module.forward
