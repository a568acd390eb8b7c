"""Plan of a conversion: the outcome of each key of a checkpoint, before a value is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from converters.checkpoint import Checkpoint, StateDict, open_checkpoint
from converters.checkpoint.cast import FLOATING, require_floating
from converters.checkpoint.folder import partial_checkpoint_notes
from converters.checkpoint.prefixes import clean, removed_from
from converters.checkpoint.quantized import quantized_by
from converters.checkpoint.reader import TensorInfo
from converters.checkpoint.renamed import Renamed
from converters.checkpoint.source import Source, is_folder
from converters.errors import AssumptionError, MappingFileError, NotAStateDictError
from converters.mapping import Plan, Slot, make_plan, read_slots
from converters.mapping.file import MappingFile, load_mapping
from converters.mapping.leaves import PlannedLeaf
from converters.mapping.module_tree import NOT_SAVED
from converters.mapping.paths import Api
from converters.mapping.scan import scan_plan
from converters.model import describe_config, has_own_code, load_config_model, require_module
from converters.model_search import find_model
from converters.remote.names import ResolvedName, resolve_name
from converters.request import ModelLike, PlanOptions
from converters.target.fit import fit_plan, without
from converters.target.shapes import target_shapes

if TYPE_CHECKING:
    from torch import Tensor

_SHOWN = 8

CheckpointLike: TypeAlias = "Source | ResolvedName | str | Mapping[str, Tensor]"


@dataclass(frozen=True)
class PlannedConversion:
    """Plan with its inputs.

    Attributes:
        plan: the outcome of every key, by keys without the prefixes of wrappers.
        checkpoint: the values, by the same keys.
        stored: plan key → the key in the file, if they differ.
        api: whose names the paths are made of.
        dtype: the dtype that floating-point arrays are cast to, or None.
        notes: other notes for the user, one line each.
        model: the torch module of the plan; None with a mapping file or inferred layers.
    """

    plan: Plan
    checkpoint: Checkpoint
    stored: Mapping[str, str]
    api: Api
    dtype: str | None
    notes: tuple[str, ...]
    model: Any = None

    @property
    def leaves(self) -> tuple[PlannedLeaf, ...]:
        """Arrays of the pytree in their final dtypes."""
        if self.dtype is None:
            return self.plan.leaves
        return tuple(
            replace(leaf, info=TensorInfo(leaf.info.shape, self.dtype))
            if leaf.info.dtype in FLOATING
            else leaf
            for leaf in self.plan.leaves
        )


def planned(checkpoint: CheckpointLike, options: PlanOptions) -> PlannedConversion:
    """Plan a conversion. Refused keys are rows of the plan.

    Args:
        checkpoint: a file, a folder, or a state dict in memory.
        options: the options of the plan.

    Raises:
        ConversionError: the checkpoint or the model is unavailable; the subclass gives the reason.
    """
    dtype = options.dtype
    if dtype is not None:
        require_floating(dtype)
    note = ""
    if isinstance(checkpoint, str | ResolvedName):
        understood = resolve_name(checkpoint)
        checkpoint, note = understood.source, understood.description
    stored = _opened(checkpoint, options.key, as_stored=options.as_stored)
    named = _named(checkpoint, stored, options)
    source = Renamed(stored, named.names)
    plan = make_plan(source.source, source.infos, named.slots)
    notes = [*([note] if note else []), *_notes_on_checkpoint(stored, named.names), *named.notes]
    if options.target is None and not options.keep_parts:
        notes += _not_saved(named.slots, source.infos)
    if options.target is not None:
        plan = without(plan, options.drop)
    if not plan.refused:
        plan, more = _rearranged(plan, options)
        notes += more
    changed = {name: key for key, name in named.names.items() if name != key}
    return PlannedConversion(plan, source, changed, named.api, dtype, tuple(notes), named.model)


def _rearranged(plan: Plan, options: PlanOptions) -> tuple[Plan, Sequence[str]]:
    """Return the plan with stacked blocks, or fitted to a Flax model; and notes on the change."""
    target, axis = options.target, options.scan
    if target is not None:
        shapes = target_shapes(target, options.target_inputs)
        fitted = fit_plan(plan, shapes, scan_axis=axis, drop=options.drop)
        return fitted.plan, fitted.notes
    if axis is None:
        return plan, ()
    scanned = scan_plan(plan, axis)
    stacked = [f"stacked: {family}" for family in scanned.families]
    return scanned.plan, [*stacked, *(f"not stacked: {reason}" for reason in scanned.left)]


@dataclass(frozen=True)
class _NamedKeys:
    """Keys without prefixes, with their slots.

    Attributes:
        names: key in the file → key of the plan.
        slots: key of the plan → slot.
        api: whose names the paths are made of.
        notes: other notes.
        model: the module of the slots.
    """

    names: Mapping[str, str]
    slots: Mapping[str, Slot]
    api: Api
    notes: tuple[str, ...] = ()
    model: Any = None


def _named(
    checkpoint: Source | Mapping[str, Tensor], stored: Checkpoint, options: PlanOptions
) -> _NamedKeys:
    file = options.mapping
    if file is not None:
        for other, value in (("model", options.model), ("assume", options.assume)):
            if value:
                raise MappingFileError(
                    str(file),
                    [f"the mapping and --{other} both set the kind of each key"],
                    "leave one of them out",
                )
        return _by_mapping(load_mapping(file, options.sizes), stored, options.to)
    api = options.to or "linen"
    trust = options.trust_remote_code
    model, notes = _model(checkpoint, stored, options.model, trust)
    assume = options.assume
    if model is None:
        # A module's paths are those of its keys: nothing was added before them.
        names = {key: key for key in stored.infos} if stored.modules else clean(stored.infos).names
        return _NamedKeys(names, _inferred(Renamed(stored, names), assume, api), api, notes)
    if assume:
        raise AssumptionError("the model already determines each layer", "leave --assume out")
    parts = options.keep_parts
    slots = read_slots(model, api, example=options.example, keep_parts=parts)
    return _NamedKeys(clean(stored.infos, slots.keys()).names, slots, api, notes, model)


def _by_mapping(file: MappingFile, stored: Checkpoint, to: Api | None) -> _NamedKeys:
    if to not in (None, file.api):
        raise MappingFileError(
            str(file.path),
            [f"its paths are those of {file.api}, not of {to}"],
            f"use --to {file.api}",
        )
    ends = {end for key in clean(stored.infos).names.values() for end in _ends(key)}
    wanted = {end for end in ends if file.matching(end)}
    names = clean(stored.infos, wanted).names
    infos = {names[key]: info for key, info in stored.infos.items()}
    return _NamedKeys(names, file.slots(infos), file.api, file.unused(infos))


def _ends(key: str) -> list[str]:
    """Return the key and its suffixes without the first steps."""
    steps = key.split(".")
    return [".".join(steps[start:]) for start in range(len(steps))]


def _notes_on_checkpoint(stored: Checkpoint, names: Mapping[str, str]) -> list[str]:
    notes = []
    if stored.entry:
        notes.append(f"the weights are the entry `{stored.entry}` of the file")
    scheme = quantized_by(stored)
    if scheme:
        notes.append(f"it looks quantized ({scheme}): nothing is unpacked or scaled")
    notes += partial_checkpoint_notes(stored.source, stored.infos)
    removed = removed_from(names)
    if removed:
        notes.append(f"left out of the keys: {', '.join(removed)}")
    if stored.unbuilt:
        notes.append(f"also holds {_few(stored.unbuilt)}: not built, not needed")
    notes += [
        f"{key} is no tensor and is not converted: {what}" for key, what in stored.others.items()
    ]
    return notes


def _not_saved(slots: Mapping[str, Slot], stored: Collection[str]) -> list[str]:
    """Note the model's buffers that torch does not save, so that the output does not hold them."""
    names = [key for key, slot in slots.items() if slot.note == NOT_SAVED and key not in stored]
    if not names:
        return []
    buffers = f"{len(names)} buffer{'s' * (len(names) > 1)} of the model"
    return [
        f"not in the output: {buffers} that torch does not save ({_few(names, 3)}); Flax models compute "
        "them; for a port, use --target port:FOLDER or its convert.py, which add them"
    ]


def _few(names: Sequence[str], most: int = _SHOWN) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _opened(
    checkpoint: Source | Mapping[str, Tensor], key: str | None, *, as_stored: bool
) -> Checkpoint:
    if isinstance(checkpoint, Mapping):
        if key is not None:
            raise NotAStateDictError("a key is for files, not for a state dict", "pass its entry")
        return StateDict("the state dict", checkpoint)
    return open_checkpoint(checkpoint, key, as_stored=as_stored)


def _inferred(checkpoint: Checkpoint, assume: Sequence[str], api: Api) -> Mapping[str, Slot]:
    from converters.inference import infer, parse_assumptions

    shared = [frozenset(keys) for keys in checkpoint.shared]
    assumptions = parse_assumptions(assume)
    inference = infer(checkpoint.infos, assumptions, api, shared, checkpoint.modules)
    if inference.unused:
        raise AssumptionError(
            f"no layer of {checkpoint.source} is meant by {', '.join(inference.unused)}",
            "compare it with the keys that `migrate weights --dry-run` shows",
        )
    return inference.slots


def _model(
    checkpoint: Source | Mapping[str, Tensor], stored: Checkpoint, model: ModelLike, trust: bool
) -> tuple[Any, tuple[str, ...]]:
    """Return the model or None, and notes on its origin."""
    if isinstance(model, str):
        names = clean(stored.infos).names
        matched = find_model(model, {names[key]: it for key, it in stored.infos.items()})
        return matched.model, (f"the model is {matched.name}",) if matched.searched else ()
    if model is not None:
        return require_module("the model", model), ()
    if isinstance(checkpoint, Mapping) or stored.modules:
        return None, ()
    folder = checkpoint if is_folder(checkpoint) else checkpoint.parent
    # A file in a Hugging Face folder belongs to the configuration beside it. If it does not, its
    # keys and shapes are refused.
    if not (folder / "config.json").is_file():
        return None, ()
    matched = load_config_model(folder, trust_remote_code=trust)
    if matched is None:
        return None, (f"{describe_config(folder)}: the layers are inferred from the keys",)
    ran = trust and has_own_code(folder)
    return matched, ((f"the model is of code in {folder}, which was run",) if ran else ())
