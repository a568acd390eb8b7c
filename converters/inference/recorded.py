"""Layers recorded in the file itself: in a pickled `nn.Module`, or in a TorchScript archive.

A pickled module contains the classes of torch.nn and their settings, so the layer of each key is
certain. The layer is recreated on the meta device from torch's own class and the settings, as
unpickling would do, without the file's code. A class that is not torch's keeps its tensors under
its own names. A class derived from a layer is recognized if it has all attributes that the layer's
constructor sets. A TorchScript archive has the classes only, and an exported program those of the
modules that have run.
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
from converters.inference.recognize import assumed
from converters.inference.tree import Node
from converters.layers.registry import find_entry
from converters.layers.reparametrized import CannotComputeError, reparametrized

_TORCH = "torch.nn.modules."
_RENAMED = {"_LinearWithBias": "NonDynamicallyQuantizableLinear"}  # torch 1.5 to 1.8
_CONTAINERS = ("Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict")
# Attributes set by a layer's constructor. No other class has all of them.
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
_LINEAR = {"in_features", "out_features"}  # users' own layers may have these too
_HOOKS = {
    "torch.nn.utils.weight_norm.WeightNorm": ("name", "dim"),
    "torch.nn.utils.spectral_norm.SpectralNorm": ("name", "n_power_iterations", "dim", "eps"),
}


@dataclass
class RecordedTree:
    """Modules of a file, arranged in a tree.

    Args:
        modules: path → recorded module.
        infos: key → shape and dtype.

    Attributes:
        certain_guesses: path → the guess for a completely recorded module.
    """

    modules: Mapping[str, RecordedModule]
    infos: Mapping[str, TensorInfo]
    certain_guesses: dict[str, Guess] = field(default_factory=dict)

    def lay_out(self, root: Node) -> None:
        """Put every module into the tree in the file's order, with its layer if that is certain."""
        for path, module in self.modules.items():
            self._place(root.at(path), path, module)

    def evidence(self, key: str) -> str | None:
        """Return the recorded class of a key's module; None if the record is incomplete."""
        path = key.rpartition(".")[0]
        return (
            f"certain: {self.modules[path].kind} in the file"
            if path in self.certain_guesses
            else None
        )

    def guess(self, group: Group, context: Context) -> Guess | None:
        """Return the guess for a group whose layer only its class shows; None to use the names."""
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
        self.certain_guesses[path] = certain(name, f"{module.kind} in the file")
        if layer is None:
            self._hold(node.parameters, node.buffers, path, module)
        else:
            node.layer, node.kind = layer, cls.__name__

    def _layer(self, cls: Any, path: str, module: RecordedModule) -> Any:
        """Return the layer as unpickling creates it: no constructor runs, and the attributes are the
        file's."""
        from torch import nn

        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        # Not the internals of torch's modules: their hooks and registries.
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
    """Whether a module of an unknown class may be a layer: a torch layer, or a user's Linear."""
    if module.kind.startswith("torch."):
        persistent = module.parameters or set(module.buffers) - module.transient
        return bool(persistent) and module.kind.rpartition(".")[2] not in _CONTAINERS
    return set(module.settings) >= _LINEAR and "weight" in module.parameters


def _unsure(module: RecordedModule) -> Guess:
    """Return the guess for an incompletely recorded module."""
    kind = kind_of_class(module.kind) or PARAMETER
    if _class_of(module) is not None:
        return ambiguous(f"the settings of {module.kind} in the file are not a layer's", kind)
    if module.kind.startswith("torch."):
        return ambiguous(f"the layer kind {module.kind} is not known", PARAMETER)
    what = f"{module.kind} keeps a weight as a Linear does, but its class is unknown"
    return ambiguous(what, "Linear", PARAMETER)


def _class_of(module: RecordedModule) -> Any:
    """Return the torch class of a module, or the one that its class derives from, or None."""
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
    """Return the torch.nn class whose attributes a class has."""
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
    """Return the layers of torch.nn by name; names from a file are only looked up here."""
    from torch import nn
    from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

    classes = {
        name: cls
        for module in map(inspect.getmodule, (vars(nn).values()))
        if module is not None and module.__name__.startswith(_TORCH)
        for name, cls in vars(module).items()
        if isinstance(cls, type)
        and issubclass(cls, nn.Module)
        and cls.__module__ == module.__name__
        and not name.startswith("_")
    }
    return {**classes, "NonDynamicallyQuantizableLinear": NonDynamicallyQuantizableLinear}


@cache
def _defaults(cls: Any) -> dict[str, Any]:
    """Return the defaults of torch's constructors; files of older versions lack the newest attributes."""
    parameters = inspect.signature(cls).parameters.values()
    return {
        parameter.name: parameter.default
        for parameter in parameters
        if parameter.default is None or isinstance(parameter.default, bool | int | float | str)
    }


def _is_whole(cls: Any, layer: Any) -> bool:
    """Whether the file has the settings of a layer, each with the required type."""
    attributes = layer.__dict__
    for parameter in inspect.signature(cls).parameters.values():
        value = attributes.get(parameter.name)
        sides = value if isinstance(value, tuple | list) else (value,)
        if (
            parameter.default is parameter.empty
            and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        ):
            if not sides or any(type(side) is not int for side in sides):
                return False
            if (parameter.name == "kernel_size") is not isinstance(
                value, tuple
            ) and "Conv" in cls.__name__:
                return False
    try:
        entry, _ = find_entry(layer)
        weights = () if entry is None else entry.weights_of(layer)
        with contextlib.suppress(CannotComputeError):  # the plan refuses it under that name
            reparametrized(layer, weights)
        if entry is not None:
            entry.note(layer, "linen")
            entry.note(layer, "nnx")
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RuntimeError):
        return False
    return True


def _require_weights(layer: Any) -> None:
    """Check that there are not more layers than weights in the file: their number drives a loop."""
    layers = layer.__dict__.get("num_layers")
    if type(layers) is not int or not 0 < layers <= max(1, len(layer._parameters)):
        layer.num_layers = 1


def _hook(kind: str, settings: Mapping[str, Any]) -> Any:
    """Return the weight_norm or spectral_norm of torch.nn.utils, or None."""
    names = _HOOKS.get(kind)
    if names is None or not set(names) <= set(settings):
        return None
    from torch.nn.utils.spectral_norm import SpectralNorm
    from torch.nn.utils.weight_norm import WeightNorm

    cls: Any = WeightNorm if kind.endswith("WeightNorm") else SpectralNorm
    hook = cls.__new__(cls)
    hook.__dict__.update({name: settings[name] for name in names})
    return hook
