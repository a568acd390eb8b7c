"""The weights of a port: exactly what `migrate weights` makes of the original's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converters.conversion import convert
from converters.copied import copied
from converters.mapping import Outcome, Plan, Row, read_slots
from converters.mapping.file import OpenSizes, load_mapping, save_mapping
from converters.mapping.paths import Api

if TYPE_CHECKING:
    import torch

PARAMS, MAPPING, CONSTANTS = "params.safetensors", "mapping.yaml", "constants.safetensors"
# What `init` reads: arrays that the original computes.
INITIAL = "initial.safetensors"
Array = Any


@dataclass(frozen=True)
class PortWeights:
    """Written weights.

    Attributes:
        parameters: number of elements; 0: the model has no weights, and there are no files.
        by_mapping: whether the mapping file alone brings another checkpoint over; else torch computes some
            weights (weight_norm), and the original's class is needed.
        state: the original's state dict, as a file of `torch.save`; None without weights.
        notes: notes on the conversion.
        frozen: paths of the parameters that the original does not train (`requires_grad=False`).
        paths: key of the state dict → its paths in Flax.
        collections: names of the collections of variables in the file; "params" is the first.
        sized: whether the mapping file names sizes of the port.
    """

    parameters: int
    by_mapping: bool
    state: Path | None
    notes: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    collections: tuple[str, ...] = ("params",)
    sized: bool = False


def write_weights(
    module: torch.nn.Module,
    name: str,
    constants: Mapping[str, Array],
    example: Sequence[tuple[int, ...]] | None,
    folder: Path,
    work: Path,
    api: Api = "linen",
    sizes: OpenSizes = OpenSizes(),  # noqa: B008 (frozen)
) -> PortWeights:
    """Write the module's weights and the port's constants as Flax has them, and the mapping of keys to paths.

    Args:
        module: the original, with its weights.
        name: name of the port.
        constants: arrays that the port has beside weights, by path.
        example: the shapes of the model's inputs; None: not images.
        folder: the port's.
        work: folder for intermediate files.
        api: API of Flax whose names the paths have.
        sizes: the port's, on which the arrangement of some weights depends.

    Raises:
        ConversionError: a weight has no place in Flax; all of them are named.
    """
    import torch

    state = module.state_dict()
    if not any(isinstance(entry, torch.Tensor) for entry in state.values()) and not constants:
        return PortWeights(0, True, None)
    saved = work / f"{name}.pt"
    torch.save(state, saved)
    done = convert(
        saved,
        model=module,
        example=example,
        output=folder / PARAMS,
        extra=dict(constants),
        keep_parts=True,
        to=api,
    )
    plan = _with_computed(_without_notes(done.plan), module, example, api)
    save_mapping(plan, folder / MAPPING, done.api, sizes=sizes)
    if constants:
        from safetensors.numpy import save_file

        save_file(dict(constants), folder / CONSTANTS)
    computed = any(rule.outcome is Outcome.REFUSED for rule in load_mapping(folder / MAPPING).rules)
    frozen = _frozen(module, done.plan)
    paths = {row.key: row.paths for row in done.plan.rows}
    there = {path.partition("/")[0] for several in (constants, *paths.values()) for path in several}
    others = there - {"params"} if api == "linen" else set()
    collections = ("params", *sorted(others))
    sized = bool(sizes.named(plan.rows))
    return PortWeights(
        done.parameters, not computed, saved, done.notes, frozen, paths, collections, sized
    )


def _without_notes(plan: Plan) -> Plan:
    """Return a plan without advice on writing the model: the port is written."""
    rows = [replace(row, note="") if row.outcome is Outcome.MAPPED else row for row in plan.rows]
    return replace(plan, rows=tuple(rows))


def _with_computed(
    plan: Plan, module: torch.nn.Module, example: Sequence[tuple[int, ...]] | None, api: Api
) -> Plan:
    """Return a plan that also drops what the model computes itself, for checkpoints of older versions."""
    there = {row.key for row in plan.rows}
    rows = [
        Row(slot.key, slot.shape, None, slot.outcome, kind=slot.kind, note=slot.note)
        for slot in read_slots(module, api, example=example, keep_parts=True).values()
        if slot.outcome is Outcome.DROPPED and slot.key not in there
    ]
    return replace(plan, rows=(*plan.rows, *rows))


def stirred(module: torch.nn.Module, seed: int) -> tuple[torch.nn.Module, int]:
    """A copy of a module that nobody trained, and how many of its tensors `stir` has changed."""
    clone: torch.nn.Module = copied(module)
    return clone, stir(clone, seed)


def stir(module: torch.nn.Module, seed: int) -> int:
    """Put noise on a module's constant parameters and statistics, in place.

    A gate of zeros hides whatever it multiplies, a scale of ones whether it is applied: the original and a
    port that is wrong there would match (a DiT as its constructor leaves it gives zeros for everything).

    Args:
        module: the module, as its constructor made it.
        seed: of the noise: normal, of standard deviation 0.02 on zeros, of a tenth of the value on others.

    Returns:
        How many tensors were changed.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    statistics = [
        getattr(submodule, name, None)
        for submodule in module.modules()
        for name in ("running_mean", "running_var")
    ]
    count = 0
    with torch.no_grad():
        for tensor in (*module.parameters(), *statistics):
            if tensor is None or not tensor.is_floating_point() or not tensor.numel():
                continue
            value = float(tensor.reshape(-1)[0])
            if bool((tensor == value).all()):
                noise = torch.randn(tensor.shape, generator=generator)
                tensor.add_((noise * (0.1 * value if value else 0.02)).to(tensor.dtype))
                count += 1
    return count


def _frozen(module: torch.nn.Module, plan: Plan) -> tuple[str, ...]:
    """Return the port's paths of parameters that the original does not train."""
    trained = {
        key: parameter.requires_grad
        for key, parameter in module.named_parameters(remove_duplicate=False)
    }
    if all(trained.values()):
        return ()
    flags: dict[str, bool] = {}
    for row in plan.rows:
        for target in row.targets:
            if row.key in trained:
                flags[target.path] = flags.get(target.path, False) or trained[row.key]
    return tuple(sorted(path for path, is_trained in flags.items() if not is_trained))
