"""Conversion of a torch optimizer's state to an optax state on disk, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from converters.back.torch_output import save, to_tensor
from converters.checkpoint.reader import TensorInfo
from converters.errors import OptimizerError
from converters.layers.join import Concat
from converters.mapping import Plan
from converters.mapping.leaves import PlannedLeaf, keys_of, restore
from converters.optimizer.candidates import candidates
from converters.optimizer.file import (
    OptimizerFile,
    plain,
    read_optimizer_file,
    write_optimizer,
)
from converters.optimizer.kinds import Kind, recognize
from converters.optimizer.moments import FROZEN, Labeled, label_leaves, moment_arrays
from converters.optimizer.order import parameter_shapes, positions_by_key
from converters.optimizer.recipe import Recipe, recipe
from converters.optimizer.torch_state import TorchOptimizer, read_optimizer

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class OptimizerConversion:
    """Optimizer whose state was converted.

    Attributes:
        kind: its name, such as "adamw".
        recipe: the optax call that continues the training.
        steps: label → steps taken so far (0 if torch does not count them).
        arrays: the number of arrays in the optax state.
        output: the file written, or None.
    """

    kind: str
    recipe: Recipe
    steps: Mapping[str, int]
    arrays: int
    output: Path | None


def convert_optimizer(
    source: Path | str | Mapping[str, Any],
    *,
    plan: Plan,
    output: Path | str | None = None,
    model: Any = None,
    key: str | None = None,
    order: Sequence[str] | str | None = None,
    keys_in_order: bool = True,
    optimizer: str | None = None,
    overwrite: bool = False,
) -> OptimizerConversion:
    """Convert the state of SGD, Adam, AdamW, Adafactor or Lion for the pytree of a plan.

    Args:
        source: a file of `optimizer.state_dict()`, a training checkpoint that contains it, or the dict.
        plan: the plan of the weights' conversion (`converters.plan`), linen or nnx.
        output: the file to write (safetensors); None to write nothing.
        model: the torch module of the optimizer, which shows the order of parameters and which are
            frozen; otherwise the order is the state dict's.
        key: the entry of a training checkpoint with the optimizer's state; None for the only one.
        order: the parameter names as the script passed them, group by group; or the order of each
            group: "registration" (of the module) or "sorted". None for the only order that fits.
        keys_in_order: whether the plan's keys are in the module's registration order; False for
            formats that sort them (safetensors).
        optimizer: "adam" or "adamw", if the state does not show it (torch before 2.7).
        overwrite: whether an existing output may be replaced.

    Raises:
        OptimizerError: the optimizer is unknown, the order of its parameters is ambiguous, or
            arrays cannot have its moments.
        ConversionError: the file cannot be read or written; the subclass says why.
    """
    state = read_optimizer(source, key)
    kind = recognize(state.groups, state.names, optimizer)
    shapes = parameter_shapes(plan)
    known = candidates(plan, model, ordered=keys_in_order)
    positions = positions_by_key(state, shapes, known, order)
    parameters = {*known.keys, *positions}
    leaves = [leaf for leaf in plan.leaves if any(p.key in parameters for p in leaf.pieces)]
    labeled = label_leaves(state, kind, leaves, positions)
    if not any(item.label != FROZEN for item in labeled):
        raise OptimizerError(
            f"{state.source}: the optimizer has no state yet", "begin with tx.init(params)"
        )
    if not kind.elementwise:
        _require_single_tensors(labeled, state)
    arrays = moment_arrays(state, kind, labeled, positions)
    if output is not None:
        file = OptimizerFile(
            state.source,
            state.groups,
            frozenset(state.names),
            positions,
            {row.key: TensorInfo(row.shape or (), row.dtype or "") for row in plan.rows
             if row.key in positions},
            plain(state.state, kind.moments),
            tuple(labeled),
            optimizer,
            arrays,
        )  # fmt: skip
        write_optimizer(Path(output), file, overwrite=overwrite)
    return OptimizerConversion(
        kind.name,
        recipe(kind, state.groups, labeled),
        {item.label: item.step or 0 for item in labeled if item.label != FROZEN},
        len(arrays),
        None if output is None else Path(output),
    )


def optimizer_recipe(path: Path | str) -> Recipe:
    """Return the optax call that continues with the state in a file of `convert_optimizer`.

    Raises:
        OptimizerError: the file is not such a file.
    """
    file = read_optimizer_file(Path(path))
    return recipe(file.kind, file.groups, file.labeled)


def optimizer_to_torch(
    source: Path | str, output: Path | str | None = None, *, overwrite: bool = False
) -> dict[str, Any]:
    """Return the torch optimizer's state dict from such a file, for `optimizer.load_state_dict`.

    Args:
        source: a file of `convert_optimizer` or `save_optimizer`.
        output: the file for `torch.save`; None to only return the dict.
        overwrite: whether an existing output may be replaced.

    Raises:
        OptimizerError: the file is not such a file, or arrays are missing.
    """
    file = read_optimizer_file(Path(source))
    kind = file.kind
    state: dict[int, dict[str, Any]] = {
        position: {name: _tensor(value) for name, value in entries.items()}
        for position, entries in file.scalars.items()
    }
    wanted = [item for item in file.labeled if item.label != FROZEN]
    for torch_name, name in kind.moments.items():
        for key, moment in _moments(file, kind, wanted, name).items():
            state.setdefault(file.positions[key], {})[torch_name] = to_tensor(moment)
    for item in wanted:
        count = file.arrays.get(f"count/{item.label}")
        for piece in item.leaf.pieces:
            entries = state.get(file.positions[piece.key], {})
            if count is not None and "step" in entries:
                entries["step"] = _like(entries["step"], int(count))
    done = {
        "state": {
            position: state[position]
            for group in file.groups
            for position in group["params"]
            if position in state
        },
        "param_groups": [
            {name: _tensor(value) for name, value in group.items()} for group in file.groups
        ],
    }
    if output is not None:
        save(Path(output), done, overwrite=overwrite)
    return done


def with_arrays(file: OptimizerFile, arrays: Mapping[str, Array]) -> OptimizerFile:
    """Return the file after more training, with other moments and counts.

    Raises:
        OptimizerError: the arrays differ; the message names all of them.
    """
    lines = [f"{name} is missing" for name in file.arrays if name not in arrays]
    lines += [f"{name} is not wanted" for name in arrays if name not in file.arrays]
    lines += [
        f"{name} is {array.shape}, not {file.arrays[name].shape}"
        for name, array in arrays.items()
        if name in file.arrays and array.shape != file.arrays[name].shape
    ]
    if lines:
        shown = ", ".join(lines[:8]) + (f" and {len(lines) - 8} more" if len(lines) > 8 else "")
        raise OptimizerError(
            f"the optax state is not that of {file.source}: {shown}",
            "give the state of the optimizer that recipe.build makes",
        )
    return replace(file, arrays=arrays)


def _moments(
    file: OptimizerFile, kind: Kind, labeled: Sequence[Labeled], name: str
) -> dict[str, Array]:
    """Return torch key → this moment in torch's arrangement."""
    prefix = f"{name}/"
    if not kind.elementwise:
        return {
            path.removeprefix(prefix): array
            for path, array in file.arrays.items()
            if path.startswith(prefix)
        }
    moments: dict[str, Array] = {}
    leaves = [item.leaf for item in labeled if f"{prefix}{item.leaf.path}" in file.arrays]
    for key, arrays in keys_of(leaves).items():
        array_of = _reader(file, prefix)
        info = file.infos[key]
        if any(item.terms > 1 for item in labeled if item.leaf in arrays):
            moments[key] = _from_sums(key, info, arrays, array_of)
            continue
        moment = restore(key, info, arrays, file.infos, array_of)
        if moment is None:
            raise OptimizerError(
                f"{file.source}: the arrays do not give {name} of {key}", "convert it again"
            )
        moments[key] = moment
    return moments


def _reader(file: OptimizerFile, prefix: str) -> Any:
    return lambda path: file.arrays[f"{prefix}{path}"]


def _from_sums(key: str, info: TensorInfo, leaves: Sequence[PlannedLeaf], array_of: Any) -> Array:
    """Return the moment of a term, which equals the moment of the sum's gradient."""
    moment = np.empty(info.shape, array_of(leaves[0].path).dtype)
    for leaf in leaves:
        for piece in leaf.pieces:
            if piece.key == key:
                piece.put(array_of(leaf.path), moment)
    return moment


def _require_single_tensors(labeled: Sequence[Labeled], state: TorchOptimizer) -> None:
    joined = [item.leaf.path for item in labeled if isinstance(item.leaf.join, Concat)]
    if joined:
        raise OptimizerError(
            f"{state.source}: Adafactor scales each tensor by its own size, and these arrays hold "
            f"several: {', '.join(joined[:5])}",
            "convert to a layout whose arrays hold one torch tensor each",
        )


def _tensor(value: Any) -> Any:
    return to_tensor(value) if isinstance(value, np.ndarray) else value


def _like(old: Any, count: int) -> Any:
    """Return the number of steps in its old torch form: a tensor or a number."""
    if not hasattr(old, "fill_"):
        return type(old)(count)
    return old.clone().fill_(count)
