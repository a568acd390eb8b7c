"""The same weights for both sides: maps the names of one model to those of the other.

Between torch modules names stay as they are. For Flax, `converters` maps the tree of torch modules to the
names and arrangement of the Flax model. Weights that cannot be placed are refused, with their keys.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from converters.back.safetensors_output import write_leaves
from converters.checkpoint.pytree import PytreeLeaf
from converters.errors import ConversionError
from converters.mapping.leaves import PlannedLeaf
from converters.mapping.module_tree import Outcome
from converters.mapping.plan import Plan
from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.requests import TORCH
from migrate.parity.sides import protocol
from migrate.parity.sides.shapes import shapes_in
from migrate.parity.sides.side import ComparedSide


@dataclass(frozen=True)
class WeightMap:
    """Origin of a side's weights in the truth's.

    Attributes:
        names: the side's name → names of the truth's weights that it is made from, in order (several: stacked
            blocks, or parts side by side).
        leaves: how a Flax side's weights are made; empty where the names are the same.
        notes: what else the user should know.
        tied: the truth's name of a tied weight → the name in `names` of the same tensor.
    """

    names: Mapping[str, tuple[str, ...]]
    leaves: tuple[PlannedLeaf, ...] = ()
    notes: tuple[str, ...] = ()
    tied: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class WeightConversion:
    """Options of the conversion of torch's weights into Flax's.

    Attributes:
        mapping: a mapping file of `migrate weights` that says what becomes of each key.
        drop: regular expressions of torch's keys that Flax's model has no use for.
        example: the shapes of the model's inputs; None: not images.
    """

    mapping: Path | None = None
    drop: Sequence[str] = ()
    example: Sequence[tuple[int, ...]] | None = None


def same_names(weights: Path) -> WeightMap:
    """Map every name to itself."""
    return WeightMap({name: (name,) for name in shapes_in(weights)})


def bring(
    truth: ComparedSide, other: ComparedSide, work: Path, conversion: WeightConversion
) -> WeightMap:
    """Load the truth's weights into the other side.

    Args:
        truth: torch's side, if there is one; the map uses its names.
        other: the side that gets the weights.
        work: a folder for the files that are passed.
        conversion: how to convert the weights.

    Raises:
        ParityError, ConversionError: weights do not fit; the message names them.
    """
    own = work / "from-truth.safetensors"
    truth.ask(protocol.SaveWeights(own))
    if truth.kind not in TORCH or other.kind in TORCH:
        try:
            other.ask(protocol.LoadWeights(own))
        except ParityError as error:  # the user does not know this file: name the weights in it
            what = error.what.replace(f"the weights of {own}", "the truth's weights")
            raise ParityError(what, "make the two models the same, with the same sizes") from None
        return same_names(own)
    names, pytree = _converted(truth, other, own, work, conversion)
    other.ask(protocol.LoadWeights(pytree))
    return names


def bring_back(
    truth: ComparedSide, other: ComparedSide, work: Path, conversion: WeightConversion
) -> WeightMap:
    """Load the other side's weights into the truth's side; else as `bring`."""
    theirs, back = work / "from-other.safetensors", work / "back.safetensors"
    other.ask(protocol.SaveWeights(theirs))
    if truth.kind not in TORCH or other.kind in TORCH:
        truth.ask(protocol.LoadWeights(theirs))
        return same_names(theirs)
    truth.ask(protocol.ConvertBack(_without_constants(other, theirs, work), back))
    truth.ask(protocol.LoadWeights(back))
    return _converted(truth, other, back, work, conversion)[0]


def only_names(
    truth: ComparedSide, other: ComparedSide, work: Path, conversion: WeightConversion
) -> WeightMap:
    """Map the names of weights that each side keeps for itself; empty, with a note, if that fails."""
    own = work / "from-truth.safetensors"
    truth.ask(protocol.SaveWeights(own))
    if truth.kind not in TORCH or other.kind in TORCH:
        return same_names(own)
    try:
        return _converted(truth, other, own, work, conversion)[0]
    except (ParityError, ConversionError) as error:
        return WeightMap({}, notes=(f"which weights are which is not known: {error}",))


def load_file(side: ComparedSide, file: Path, work: Path) -> None:
    """Load into a side the weights of a torch checkpoint, or of a pytree on disk in any format.

    Raises:
        ParityError, ConversionError: the file cannot be read or does not fit.
    """
    output = work / f"{file.stem}-{side.kind}.safetensors"
    if side.kind in TORCH:
        from converters.checkpoint import open_checkpoint
        from converters.checkpoint.prefixes import clean

        own = work / "own.safetensors"
        side.ask(protocol.SaveWeights(own))
        checkpoint = open_checkpoint(file)
        names = clean(checkpoint.infos, shapes_in(own).keys()).names
    else:
        from converters.output.arrays import open_arrays

        checkpoint = open_arrays(file)
        names = {key: key for key in checkpoint.infos}
    leaves = [
        PytreeLeaf(names[key], info, functools.partial(checkpoint.read, key))
        for key, info in checkpoint.infos.items()
    ]
    write_leaves(output, leaves, {}, overwrite=True)
    try:
        side.ask(protocol.LoadWeights(output))
    except ParityError as error:  # the message names the copy only
        raise ParityError(error.what.replace(str(output), str(file)), error.remedy) from None


def _converted(
    torch: ComparedSide, flax: ComparedSide, state: Path, work: Path, conversion: WeightConversion
) -> tuple[WeightMap, Path]:
    """Write the state dict as a pytree with the Flax side's names and shapes; return names and file."""
    shapes, output, rules = (
        work / name for name in ("shapes.safetensors", "pytree.safetensors", "mapping.yaml")
    )
    if flax.kind != "jax":  # the parameters of a plain function are unknown
        flax.ask(protocol.SaveWeights(shapes))
        shapes = _without_constants(flax, shapes, work)
    notes = torch.ask(
        protocol.Convert(
            "nnx" if flax.kind == "nnx" else "linen",
            state,
            output,
            None if flax.kind == "jax" else shapes,
            conversion.mapping,
            rules,
            conversion.drop,
            conversion.example,
            flax.ported,
        )
    )
    plan = _plan(state, rules)
    leaves = plan.leaves
    names = {leaf.path: tuple(dict.fromkeys(piece.key for piece in leaf.pieces)) for leaf in leaves}
    if flax.constants is not None:
        whole = work / "pytree-and-constants.safetensors"
        write_leaves(whole, [*_arrays(output), *_arrays(flax.constants)], {}, overwrite=True)
        output = whole
    return WeightMap(names, leaves, notes, _tied(plan)), output


def _without_constants(flax: ComparedSide, file: Path, work: Path) -> Path:
    """Write a side's arrays to a file, without the constants that no checkpoint holds and torch has not."""
    if flax.constants is None:
        return file
    constants = {leaf.path for leaf in _arrays(flax.constants)}
    output = work / f"{file.stem}-weights.safetensors"
    kept = [leaf for leaf in _arrays(file) if leaf.path not in constants]
    write_leaves(output, kept, {}, overwrite=True)
    return output


def _arrays(file: Path) -> list[PytreeLeaf]:
    from converters.output.arrays import open_arrays

    arrays = open_arrays(file)
    return [
        PytreeLeaf(key, info, functools.partial(arrays.read, key))
        for key, info in arrays.infos.items()
    ]


def _plan(state: Path, rules: Path) -> Plan:
    from converters.planning import planned
    from converters.request import PlanOptions

    return planned(state, PlanOptions(mapping=rules)).plan


def _tied(plan: Plan) -> dict[str, str]:
    """Tied key → mapped key with the same tensor."""
    mapped = {row.targets: row.key for row in plan.mapped}
    return {row.key: mapped[row.targets] for row in plan.of(Outcome.TIED) if row.targets in mapped}
