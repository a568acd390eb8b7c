"""The layers that a file itself tells of: those of a whole pickled `nn.Module`, or of a TorchScript archive.

The classes of torch.nn and their settings are in a pickled module, so that the layer of each key is certain:
it is made again on the meta device from torch's own class and the settings, as unpickling would, without the
file's code. A class that is not torch's holds what it holds under its own names; one that derives from a
layer is told by having all the attributes that this layer's constructor sets. A TorchScript archive has the
classes only, and an exported program those of the modules that have run.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from converters.checkpoint.inert.modules import RecordedModule
from converters.checkpoint.reader import TensorInfo
from converters.inference.assume import Assumption, kind_of_class
from converters.inference.context import Context
from converters.inference.groups import Group
from converters.inference.guess import PARAMETER, Confidence, Guess, ambiguous, certain
from converters.inference.recognise import assumed
from converters.inference.tree import Node
from converters.layers.registry import find_entry
from converters.layers.reparametrized import CannotComputeError, reparametrized

_TORCH = "torch.nn.modules."
_RENAMED = {"_LinearWithBias": "NonDynamicallyQuantizableLinear"}  # torch 1.5 to 1.8
_CONTAINERS = ("Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict")
# Attributes that the constructor of a layer sets, and of no other class all of them.
_SIGNATURES = {
    frozenset(names.split()): kind
    for kind, names in {
        "Conv": "in_channels out_channels kernel_size stride padding dilation transposed output_padding "
        "groups padding_mode",
        "BatchNorm": "num_features eps momentum affine track_running_stats",
        "EmbeddingBag": "num_embeddings embedding_dim max_norm norm_type scale_grad_by_freq mode sparse",
        "Embedding": "num_embeddings embedding_dim padding_idx max_norm norm_type scale_grad_by_freq sparse",
        "MultiheadAttention": "embed_dim num_heads dropout head_dim kdim vdim _qkv_same_embed_dim",
        "RNN": "mode input_size hidden_size num_layers bias batch_first dropout bidirectional",
        "LayerNorm": "normalized_shape eps elementwise_affine",
        "GroupNorm": "num_groups num_channels eps affine",
        "Bilinear": "in1_features in2_features out_features",
    }.items()
}
_LINEAR = {"in_features", "out_features"}  # which layers of one's own have, too
_HOOKS = {
    "torch.nn.utils.weight_norm.WeightNorm": ("name", "dim"),
    "torch.nn.utils.spectral_norm.SpectralNorm": ("name", "n_power_iterations", "dim", "eps"),
}


@dataclass
class RecordedTree:
    """The modules of a file, laid out in a tree.

    Args:
        modules: path → what the file says of the module there.
        infos: key → shape and dtype.

    Attributes:
        sure: path → the guess for a module of which the file says all.
    """

    modules: Mapping[str, RecordedModule]
    infos: Mapping[str, TensorInfo]
    sure: dict[str, Guess] = field(default_factory=dict)

    def lay_out(self, root: Node) -> None:
        """Put every module into the tree, in the file's order; what it holds, where that is certain."""
        for path, module in self.modules.items():
            self._place(root.at(path), path, module)

    def evidence(self, key: str) -> str | None:
        """What the file says of the module that a key belongs to; None where that is not all."""
        path = key.rpartition(".")[0]
        return f"certain: {self.modules[path].kind} in the file" if path in self.sure else None

    def guess(self, group: Group, context: Context) -> Guess | None:
        """The guess for a group whose layer only its class tells; None: the names must do."""
        module = self.modules.get(group.path)
        if module is None:
            return None
        if module.complete:
            return _unsure(module)
        kind = kind_of_class(module.kind) if module.kind.startswith(_TORCH) else None
        if kind is None:
            return None
        guess = assumed(group, Assumption(module.kind, None, kind), context)
        if guess.confidence is Confidence.ASSUMED:
            evidence = f"{module.kind} in the file"
            return replace(guess, confidence=Confidence.CERTAIN, evidence=evidence)
        return guess

    def _place(self, node: Node, path: str, module: RecordedModule) -> None:
        name = module.kind.rpartition(".")[2]
        is_torch = module.kind.startswith(_TORCH)
        if is_torch and name in _CONTAINERS:
            node.container = name
        elif not is_torch:
            numbered = module.children and all(child.isdecimal() for child in module.children)
            node.container, node.kind = "Sequential" if numbered else "", name
        if not module.complete:
            return
        cls = _class_of(module)
        if cls is None and _may_be_layer(module):
            return
        layer = None if cls is None else self._layer(cls, path, module)
        if layer is not None and not _is_whole(cls, layer):
            return
        self.sure[path] = certain(name, f"{module.kind} in the file")
        if layer is None:
            self._hold(node.parameters, node.buffers, path, module)
        else:
            node.layer, node.kind = layer, cls.__name__

    def _layer(self, cls: Any, path: str, module: RecordedModule) -> Any:
        """The layer as unpickling makes it: no constructor runs, its attributes are those of the file."""
        from torch import nn

        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        # Not what torch's machinery keeps in a module: its hooks and registers.
        kept = {*layer.__dict__, *module.parameters, *module.buffers, *module.children}
        for name, value in (_defaults(cls) | dict(module.settings)).items():
            if name not in kept and not hasattr(cls, name):
                layer.__dict__[name] = value
        layer.training = False
        self._hold(layer._parameters, layer._buffers, path, module)
        layer._non_persistent_buffers_set.update(module.transient & set(module.buffers))
        if cls.__name__ in ("LSTM", "GRU", "RNN"):
            _require_weights(layer)
        for number, (kind, settings) in enumerate(module.hooks):
            hook = _hook(kind, settings)
            if hook is not None:
                layer._forward_pre_hooks[number] = hook
        if not module.kind.startswith(_TORCH):
            name = module.kind.rpartition(".")[2]
            layer.__class__ = type(name, (cls,), {"__module__": "the checkpoint"})
        return layer

    def _hold(
        self,
        parameters: dict[str, Any],
        buffers: dict[str, Any],
        path: str,
        module: RecordedModule,
    ) -> None:
        import torch

        for names, held in ((module.parameters, parameters), (module.buffers, buffers)):
            for name in names:
                info = self.infos.get(f"{path}.{name}" if path else name)
                tensor = None if info is None else torch.empty(info.shape, device="meta")
                if tensor is not None and held is parameters:
                    tensor = torch.nn.Parameter(tensor, requires_grad=False)
                held[name] = tensor


def _may_be_layer(module: RecordedModule) -> bool:
    """Whether a module of an unknown class may be a layer: one of torch's, or a Linear of one's own."""
    if module.kind.startswith("torch."):
        own = module.parameters or set(module.buffers) - module.transient
        return bool(own) and module.kind.rpartition(".")[2] not in _CONTAINERS
    return set(module.settings) >= _LINEAR and "weight" in module.parameters


def _unsure(module: RecordedModule) -> Guess:
    """The guess for a module of which the file says too little."""
    kind = kind_of_class(module.kind) or PARAMETER
    if _class_of(module) is not None:
        return ambiguous(f"the settings of {module.kind} in the file are not a layer's", kind)
    if module.kind.startswith("torch."):
        return ambiguous(f"the layer kind {module.kind} is not known", PARAMETER)
    what = f"{module.kind} keeps a weight as a Linear does; whether it is one, its class says"
    return ambiguous(what, "Linear", PARAMETER)


def _class_of(module: RecordedModule) -> Any:
    """torch's class of a module, or the one that its class derives from; None for what is neither."""
    name = module.kind.rpartition(".")[2]
    if module.kind.startswith(_TORCH):
        name = _RENAMED.get(name, name)
        return None if name in _CONTAINERS else _classes().get(name)
    has = set(module.settings)
    for names, kind in _SIGNATURES.items():
        if names <= has:
            return _classes().get(_exact(kind, module))
    return None


def _exact(kind: str, module: RecordedModule) -> str:
    """The class of torch.nn of which a class has all attributes."""
    if kind == "Conv":
        sides = module.settings["kernel_size"]
        rank = len(sides) if isinstance(sides, tuple | list) else 0
        return f"Conv{'Transpose' if module.settings['transposed'] else ''}{rank}d"
    if kind == "RNN":
        return str(module.settings["mode"]).partition("_")[0]
    if kind == "BatchNorm":
        return "InstanceNorm2d" if "instance" in module.kind.lower() else "BatchNorm2d"
    if kind == "LayerNorm" and "bias" not in module.parameters:
        return "RMSNorm"
    return kind


@cache
def _classes() -> Mapping[str, Any]:
    """The layers of torch.nn, by name; a file's names are only ever looked up here."""
    from torch import nn
    from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

    found = {
        name: cls
        for module in map(inspect.getmodule, (vars(nn).values()))
        if module is not None and module.__name__.startswith(_TORCH)
        for name, cls in vars(module).items()
        if isinstance(cls, type)
        and issubclass(cls, nn.Module)
        and cls.__module__ == module.__name__
        and not name.startswith("_")
    }
    return {**found, "NonDynamicallyQuantizableLinear": NonDynamicallyQuantizableLinear}


@cache
def _defaults(cls: Any) -> dict[str, Any]:
    """What torch's constructor sets where it is told nothing; files of older versions lack the newest."""
    parameters = inspect.signature(cls).parameters.values()
    return {
        one.name: one.default
        for one in parameters
        if one.default is None or isinstance(one.default, bool | int | float | str)
    }


def _is_whole(cls: Any, layer: Any) -> bool:
    """Whether the file has the settings of such a layer, each of the type that it must have."""
    own = layer.__dict__
    for one in inspect.signature(cls).parameters.values():
        value = own.get(one.name)
        sides = value if isinstance(value, tuple | list) else (value,)
        if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD:
            if not sides or any(type(side) is not int for side in sides):
                return False
            if (one.name == "kernel_size") is not isinstance(
                value, tuple
            ) and "Conv" in cls.__name__:
                return False
    try:
        entry, _ = find_entry(layer)
        weights = () if entry is None else entry.weights_of(layer)
        with contextlib.suppress(CannotComputeError):  # the plan refuses it by that name
            reparametrized(layer, weights)
        if entry is not None:
            entry.note(layer, "linen")
            entry.note(layer, "nnx")
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RuntimeError):
        return False
    return True


def _require_weights(layer: Any) -> None:
    """Not more layers than the file has weights: their number is a loop's."""
    layers = layer.__dict__.get("num_layers")
    if type(layers) is not int or not 0 < layers <= max(1, len(layer._parameters)):
        layer.num_layers = 1


def _hook(kind: str, settings: Mapping[str, Any]) -> Any:
    """weight_norm or spectral_norm of torch.nn.utils; None for what is neither."""
    names = _HOOKS.get(kind)
    if names is None or not set(names) <= set(settings):
        return None
    from torch.nn.utils.spectral_norm import SpectralNorm
    from torch.nn.utils.weight_norm import WeightNorm

    cls: Any = WeightNorm if kind.endswith("WeightNorm") else SpectralNorm
    hook = cls.__new__(cls)
    hook.__dict__.update({name: settings[name] for name in names})
    return hook
