"""Torch keys of each array of a pytree without a file beside it, determined from the module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from converters.checkpoint.reader import TensorInfo
from converters.errors import MisfitError
from converters.kept import Kept, KeptKey, retarget
from converters.mapping import Outcome, Plan, make_plan, read_slots
from converters.mapping.file import load_mapping
from converters.mapping.module_tree import Slot
from converters.mapping.paths import Api
from converters.mapping.scan import scan_leaves
from converters.target.fit import fit_plan

Example: TypeAlias = "Sequence[tuple[int, ...]] | None"

_COUNTER = "num_batches_tracked"


def from_module(
    model: Any,
    arrays: Mapping[str, TensorInfo],
    where: str,
    example: Example = None,
) -> Kept:
    """Return the data for the way back, from the torch module that the arrays belong to.

    The top level (`params`), and the better fit of both, determine whether the arrays are linen's
    or nnx's. The bare tree below `params` is accepted too, and so are repeated blocks stacked along
    axis 0 or 1. Other names are fitted as for `--target` (`converters.target`).

    Args:
        model: the module, on any device.
        arrays: path → shape and dtype of the pytree.
        where: the pytree's name, for messages.
        example: the shapes of the model's inputs, as in the conversion.

    Raises:
        MisfitError: arrays are missing, extra or of another shape, or the module has unknown
            layers; all of them are in `misfits`.
    """
    candidates = [_candidate(model, arrays, api, bare, example) for api, bare in _forms(arrays)]
    for kept, refused in candidates:
        if not refused and not misfits_of(kept, arrays):
            return kept
    for kept, refused in candidates:
        for axis in (0, 1):  # stacked blocks
            leaves, families, _ = scan_leaves(kept.leaves, axis)
            stacked = retarget(kept, leaves)
            if families and not refused and not misfits_of(stacked, arrays):
                return stacked
    kept, refused = candidates[0]
    misfits = refused + misfits_of(kept, arrays)
    try:
        return _fitted(model, arrays, example)
    except MisfitError as error:  # names of neither API: report the shorter list
        misfits = min(misfits, [*refused, *error.misfits], key=len)
    raise MisfitError(
        f"{where} is not the pytree of the model",
        misfits,
        "pass the model that it belongs to, configured alike",
    )


def from_mapping(
    model: Any, arrays: Mapping[str, TensorInfo], where: str, mapping: Path | str
) -> Kept:
    """Return the same data if a mapping file maps keys to arrays.

    Raises:
        MappingFileError: the file does not mention the module's keys.
        MisfitError: the arrays differ from those in the file.
    """
    file = load_mapping(mapping)
    infos = {
        key: TensorInfo(tuple(tensor.shape), "float32")
        for key, tensor in model.state_dict().items()
        if hasattr(tensor, "shape")
    }
    slots = file.slots(infos)
    plan = make_plan("the model", infos, slots)
    kept = _kept(plan, slots, arrays, file.api)
    misfits = [f"{row.key}: {row.note}" for row in plan.refused] + misfits_of(kept, arrays)
    if misfits:
        raise MisfitError(
            f"{where} is not what {mapping} makes of the model",
            misfits,
            "give the mapping that belongs to both",
        )
    return kept


def misfits_of(kept: Kept, arrays: Mapping[str, TensorInfo]) -> list[str]:
    """Return the missing, extra and misshaped arrays, one line each."""
    wanted = {leaf.path: leaf.info.shape for leaf in kept.leaves}
    lines = [
        f"{path} is missing"
        if path not in arrays
        else f"{path} is {arrays[path].shape}, not {shape}"
        for path, shape in wanted.items()
        if path not in arrays or arrays[path].shape != shape
    ]
    return lines + [f"{path} is not wanted" for path in arrays if path not in wanted]


def _forms(arrays: Mapping[str, TensorInfo]) -> list[tuple[Api, bool]]:
    """Return the forms to try, the likeliest first."""
    collections = {path.partition("/")[0] for path in arrays}
    linen: list[tuple[Api, bool]] = [("linen", False)]
    bare: list[tuple[Api, bool]] = [("nnx", False), ("linen", True)]
    return linen + bare if "params" in collections else bare + linen


def _candidate(
    model: Any, arrays: Mapping[str, TensorInfo], api: Api, bare: bool, example: Example
) -> tuple[Kept, list[str]]:
    plan, slots = _plan(model, api, example)
    if bare:
        bared = (replace(leaf, path=leaf.path.removeprefix("params/")) for leaf in plan.leaves)
        plan = replace(plan, leaves=tuple(bared))
    return _kept(plan, slots, arrays, api), [f"{row.key}: {row.note}" for row in plan.refused]


def _fitted(model: Any, arrays: Mapping[str, TensorInfo], example: Example) -> Kept:
    """Return the data for names of another Flax model.

    Raises:
        MisfitError: the names do not fit.
    """
    plan, slots = _plan(model, "linen", example)
    fitted = fit_plan(plan, arrays).plan
    kept = _kept(fitted, slots, arrays, "linen")
    return replace(
        kept, notes=(*kept.notes, "its arrays were fitted to the module by name and shape")
    )


def _plan(model: Any, api: Api, example: Example) -> tuple[Plan, Mapping[str, Slot]]:
    slots = read_slots(model, api, example=example)
    # The dtype of each key is that of its array, determined later; the plan only needs them to
    # agree.
    infos = {
        key: TensorInfo(slots[key].shape, "float32")
        for key in model.state_dict()
        if key in slots and slots[key].outcome is not Outcome.REFUSED
    }
    return make_plan("the model", infos, slots), slots


def _kept(
    plan: Plan, slots: Mapping[str, Slot], arrays: Mapping[str, TensorInfo], api: Api
) -> Kept:
    dtypes = {
        piece.key: arrays[leaf.path].dtype
        for leaf in plan.leaves
        if leaf.path in arrays
        for piece in leaf.pieces
    }
    keys, tensors, notes = _keys(plan, slots, dtypes)
    return Kept("the model", api, keys, plan.leaves, tensors, notes)


def _keys(
    plan: Plan, slots: Mapping[str, Slot], dtypes: Mapping[str, str]
) -> tuple[tuple[KeptKey, ...], dict[str, Any], tuple[str, ...]]:
    keys: list[KeptKey] = []
    tensors: dict[str, Any] = {}
    notes: list[str] = []
    source_of = {row.targets: row.key for row in plan.mapped}
    for row in plan.rows:
        shape = row.shape or ()
        if row.outcome is Outcome.MAPPED:
            info = TensorInfo(shape, dtypes.get(row.key, "float32"))
            keys.append(KeptKey(row.key, row.key, info))
        elif row.outcome is Outcome.TIED:
            owner = source_of[row.targets]
            info = TensorInfo(shape, dtypes.get(owner, "float32"))
            keys.append(KeptKey(row.key, row.key, info, owner))
        elif row.outcome is Outcome.DROPPED and row.key.rpartition(".")[2] == _COUNTER:
            note = "torch's initial value: Flax does not count batches"
            keys.append(KeptKey(row.key, row.key, TensorInfo((), "int64"), note=note))
            tensors[row.key] = np.zeros((), np.int64)
        elif row.outcome is Outcome.DROPPED:
            notes.append(
                f"{row.key} is left out ({slots[row.key].note}): load with strict=False, so that "
                "the model keeps its own"
            )
    return tuple(keys), tensors, tuple(notes)
