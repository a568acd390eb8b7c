"""Slot of each tensor of a torch model: its layer kind and its path in Flax, or the reason without one.

Only the module tree is read, never a value: a model on the meta device is enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from converters.layers import UNCHANGED, LayerEntry, Layout, Weight, entries
from converters.layers.entry import PARAMS, Weights
from converters.layers.join import ALONE, Join
from converters.layers.layout import Part
from converters.layers.registry import find_entry
from converters.layers.reparametrized import (
    CannotComputeError,
    ComputedWeight,
    class_before,
    is_computed_before,
    is_reparametrized,
    layer_around,
    reparametrized,
)
from converters.mapping.flattened_convolutions import Flattened, concerns, flattened_inputs
from converters.mapping.paths import Api, ModuleLocation, is_container

BUFFERS = "buffers"
PARAMETER_KIND = "Parameter"
BUFFER_KIND = "buffer"
# Note of the slot of a non-persistent buffer, which torch's checkpoints do not hold.
NOT_SAVED = "non-persistent buffer: the model computes it itself"


class Outcome(StrEnum):
    """Outcome of a key. Every key of a checkpoint has exactly one."""

    MAPPED = "mapped"
    TIED = "tied"
    DROPPED = "dropped"
    REFUSED = "refused"


@dataclass(frozen=True)
class Target:
    """Target of a tensor or of a part of it.

    Attributes:
        path: `/`-joined path in the pytree; for linen the collection first.
        layout: the layout from torch's arrangement to Flax's.
        part: the part of the tensor; None for all of it.
        join: the join of the pieces of the array at the path.
        index: the position among these pieces.
    """

    path: str
    layout: Layout = UNCHANGED
    part: Part | None = None
    join: Join = ALONE
    index: int = 0


@dataclass(frozen=True)
class Slot:
    """Tensor of the model, whether or not a checkpoint contains it.

    Attributes:
        key: its torch name ("encoder.layer.0.output.dense.weight").
        shape: its torch shape.
        kind: layer kind ("Linear"), "Parameter" or "buffer" for a tensor of a user's own module,
            or the name of the torch class that no entry knows.
        outcome: mapped, dropped or refused.
        targets: its targets; empty unless mapped.
        note: the reason, if dropped or refused; otherwise a note on the mapping, or "".
        tied: the first key of the same tensor; "" if this key is the first or the only one.
        evidence: the basis: "module tree", or that of an inference or a mapping file.
    """

    key: str
    shape: tuple[int, ...]
    kind: str
    outcome: Outcome
    targets: tuple[Target, ...] = ()
    note: str = ""
    tied: str = ""
    evidence: str = "module tree"


def read_slots(
    model: Any,
    api: Api = "linen",
    known: Mapping[str, LayerEntry] | None = None,
    example: Sequence[tuple[int, ...]] | None = None,
    keep_parts: bool = False,
) -> dict[str, Slot]:
    """Return key → slot for every parameter and buffer of an `nn.Module`, in the order of `state_dict`.

    Names that share one tensor (tied weights) each have a slot; the later slots name the first.

    Args:
        model: the module, on any device.
        api: whose names the paths are made of: "linen" (collection first) or "nnx".
        known: entries that replace those of their kinds, or None.
        example: the shapes of the model's inputs, for `flattened_inputs`; None to try common ones.
        keep_parts: whether the tensors from which torch computes a weight keep their names, if no
            layer of `converters.modules` supports them.
    """
    first: dict[int, str] = {}
    slots: dict[str, Slot] = {}
    kinds = entries() if known is None else {**entries(), **known}
    for tensor, slot in _Visit(kinds, flattened_inputs(model, example), keep_parts).visit(
        model, "", ModuleLocation(api), "", set()
    ):
        if slot.outcome is Outcome.DROPPED:  # never the owner of a tensor that must be kept
            slots[slot.key] = slot
            continue
        owner = first.setdefault(id(tensor), slot.key)
        slots[slot.key] = slot if owner == slot.key else _tie(slot, owner)
    return slots


def _tie(slot: Slot, owner: str) -> Slot:
    return Slot(slot.key, slot.shape, slot.kind, slot.outcome, tied=owner)


@dataclass(frozen=True)
class _ModuleLayer:
    """Module of the walk: its entry or the unknown class, and its weights."""

    entry: LayerEntry | None
    unknown: str
    weights: Weights
    blocked: str  # the reason why it and its submodules are refused, or ""
    flattened: str = ""  # a note on its input, or ""


@dataclass(frozen=True)
class _Visit:
    """Walk through a module tree, with the entries and flattened inputs that apply."""

    kinds: Mapping[str, LayerEntry]
    flattened: Mapping[str, Flattened]
    keep_parts: bool

    def visit(
        self, module: Any, prefix: str, place: ModuleLocation, blocked: str, taken: set[str]
    ) -> Iterator[tuple[Any, Slot]]:
        """Yield the tensors of a module and of its submodules.

        `blocked` is the reason for refusing the whole subtree, or "". The parts of an unknown layer
        are not converted separately. `taken` are the keys below that belong to an outer layer.
        """
        tensors = list(_own_tensors(module))
        layer = self._layer(module, prefix.removesuffix("."), tensors, blocked)
        nested_names = dict.fromkeys(
            weight.torch for weight in layer.weights if "." in weight.torch
        )
        nested = [(name, _get(module, name), True) for name in nested_names]
        nested = [item for item in nested if item[1] is not None]
        taken = taken | {f"{prefix}{name}" for name, _, _ in nested}
        nested_keys = {name for name, _, _ in nested}
        for name, tensor, persistent in tensors + nested:
            if f"{prefix}{name}" not in taken or name in nested_keys:
                yield tensor, _slot(module, layer, prefix, (name, tensor, persistent), place)
        # `named_children` would skip a second name of the same child, and with it a tied key.
        for index, (name, child) in enumerate(module._modules.items()):
            if child is not None:
                at = place.child(module, name, index)
                yield from self.visit(child, f"{prefix}{name}.", at, layer.blocked, taken)

    def _layer(
        self, module: Any, name: str, tensors: list[tuple[str, Any, bool]], blocked: str
    ) -> _ModuleLayer:
        entry, unknown = find_entry(module, self.kinds)
        if blocked:
            return _ModuleLayer(entry, unknown, (), blocked)
        if any(_shape(tensor) is None for _, tensor, _ in tensors):
            return _ModuleLayer(entry, unknown, (), "a lazy layer that was never run")
        if self.keep_parts and is_computed_before(
            module, entry.weights_of(module) if entry else ()
        ):
            return _ModuleLayer(None, "", (), "")  # like a user's own module
        computed = is_reparametrized(module)
        # Layers created by torch.ao (quantized, or to be) may look like plain layers inside.
        is_quantized = unknown.startswith("torch.ao.") and any(True for _ in module.parameters())
        if unknown and (
            computed or is_quantized or any(persistent for _, _, persistent in tensors)
        ):
            return _ModuleLayer(entry, unknown, (), f"the layer kind {unknown} is not known")
        flat = self.flattened.get(name)
        try:
            weights = entry.weights_of(module) if entry else ()
            weights = flat.apply(module, weights) if flat else weights
            weights = reparametrized(module, weights) if computed else weights
        except CannotComputeError as error:
            return _ModuleLayer(entry, unknown, (), str(error))
        return _ModuleLayer(entry, unknown, weights, "", flat.note if flat else "")


def _slot(
    module: Any,
    layer: _ModuleLayer,
    prefix: str,
    item: tuple[str, Any, bool],
    place: ModuleLocation,
) -> Slot:
    """Return one tensor's slot."""
    name, tensor, persistent = item
    key, shape = f"{prefix}{name}", _shape(tensor) or ()
    kind = layer.unknown or (layer.entry.kind if layer.entry else "")
    if not persistent:
        return Slot(key, shape, kind or BUFFER_KIND, Outcome.DROPPED, note=NOT_SAVED)
    if layer.blocked:
        return Slot(key, shape, kind, Outcome.REFUSED, note=layer.blocked)
    if "/" in key:
        return Slot(key, shape, kind, Outcome.REFUSED, note="a name with a / in it")
    if layer.entry or any(weight.torch == name for weight in layer.weights):
        return _layer_slot(module, layer, name, key, shape, place)
    return _plain_slot(module, name, key, shape, place)


def _get(module: Any, name: str) -> Any:
    """Return the tensor of a dotted name; None if the layer lacks it."""
    *path, last = name.split(".")
    for child in path:
        module = getattr(module, child, None)
    return getattr(module, last, None)


def _own_tensors(module: Any) -> Iterator[tuple[str, Any, bool]]:
    """Yield name, tensor and whether it is in the state dict, for the tensors the module holds directly."""
    for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
        yield name, parameter, True
    for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
        yield name, buffer, name not in module._non_persistent_buffers_set


def _shape(tensor: Any) -> tuple[int, ...] | None:
    """Return the shape; None for a tensor of a lazy layer."""
    from torch.nn.parameter import is_lazy

    return None if is_lazy(tensor) else tuple(tensor.shape)


def _layer_slot(
    module: Any,
    layer: _ModuleLayer,
    name: str,
    key: str,
    shape: tuple[int, ...],
    place: ModuleLocation,
) -> Slot:
    entry = layer.entry
    kind = entry.kind if entry else PARAMETER_KIND
    targets = _targets(module, layer.weights, name, place)
    if not targets and entry:
        for dropped, reason in entry.dropped:
            if name == dropped:
                return Slot(key, shape, kind, Outcome.DROPPED, note=reason)
        if _is_own(module, layer.weights, name):
            return _plain_slot(module, name, key, shape, place)
        reason = f"{kind} has no {name}: a parametrized or extended layer is not known"
        return Slot(key, shape, kind, Outcome.REFUSED, note=reason)
    try:
        for target in targets:
            target.layout.shape(target.part.shape(shape) if target.part else shape)
    except ValueError as error:
        return Slot(key, shape, kind, Outcome.REFUSED, note=str(error))
    notes = [_note(module, entry, targets, place.api)]
    if not any(isinstance(target.join, ComputedWeight) for target in targets):
        notes.insert(0, layer_around(module, name))
    if concerns(module, name):
        notes.insert(0, layer.flattened)
    return Slot(key, shape, kind, Outcome.MAPPED, targets, "; ".join(filter(None, notes)))


def _is_own(module: Any, weights: Weights, name: str) -> bool:
    """Whether a tensor belongs to a user's subclass of a layer, not to the layer itself.

    This excludes torch's replacements of a weight (`weight_orig` and `weight_mask` of pruning).
    """
    weight_names = {weight.torch for weight in weights}
    instead = any(name.startswith((f"{weight}_", "parametrizations.")) for weight in weight_names)
    return not type(module).__module__.startswith("torch.") and not instead


def _note(module: Any, entry: LayerEntry | None, targets: tuple[Target, ...], api: Api) -> str:
    """Return the note on a layer's weight."""
    notes = []
    cls = class_before(module)
    if entry and cls.__name__ != entry.kind and not cls.__module__.startswith("torch."):
        notes.append(f"{cls.__name__}, a subclass: its own forward is yours to write")
    if any(isinstance(target.join, ComputedWeight) for target in targets):
        notes.append("computed by torch: a training run cannot go on from the result")
    if entry:
        notes.append(entry.note(module, api))
    return "; ".join(filter(None, notes))


def _targets(module: Any, weights: Weights, name: str, place: ModuleLocation) -> tuple[Target, ...]:
    """Return the targets of the pieces of a layer's tensor, with their positions in the joined array."""
    targets = []
    pieces: Counter[str] = Counter()
    for weight in weights:
        path = _weight_path(module, weight, place)
        if weight.torch == name:
            target = Target(path, weight.layout, weight.part, weight.join, pieces[path])
            targets.append(target)
        pieces[path] += 1
    return tuple(targets)


def _weight_path(module: Any, weight: Weight, place: ModuleLocation) -> str:
    if place.api == "nnx":
        return place.weight(module, weight.nnx)
    return f"{weight.collection}/{place.weight(module, weight.linen)}"


def _plain_slot(
    module: Any, name: str, key: str, shape: tuple[int, ...], place: ModuleLocation
) -> Slot:
    owner = "the model" if is_container(module) else type(module).__name__
    path = place.weight(module, name)
    if name in module._parameters:
        kind, collection = PARAMETER_KIND, PARAMS
        note = f"a parameter of {owner} itself: unchanged, under its own name"
    else:
        kind, collection = BUFFER_KIND, BUFFERS
        note = f"a buffer of {owner} itself: unchanged, "
        note += "under its own name" if place.api == "nnx" else f"in the collection {BUFFERS}"
    target = Target(path if place.api == "nnx" else f"{collection}/{path}")
    return Slot(key, shape, kind, Outcome.MAPPED, (target,), note)
