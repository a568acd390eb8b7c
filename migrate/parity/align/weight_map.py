"""One set of weights for both sides: the names of one, brought to those of the other.

Between torch modules they go as they are. Into Flax `converters` brings them, by the tree of torch modules,
fitted to the names and arrangement that the Flax model has; what cannot be placed is refused with its keys.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from converters.back.safetensors_output import write_leaves
from converters.checkpoint.pytree import PytreeLeaf
from converters.errors import ConversionError
from converters.mapping.leaves import PlannedLeaf
from migrate.parity.ground.errors import ParityError
from migrate.parity.sides import protocol
from migrate.parity.sides.shapes import shapes_in
from migrate.parity.sides.side import Side

_TORCH = ("torch", "xla")


@dataclass(frozen=True)
class WeightMap:
    """How the weights of a side come from the truth's.

    Attributes:
        names: the side's name → those of the truth's that it is made from, in order (several: stacked
            blocks, or parts side by side).
        leaves: how: of a Flax side; empty where the names are the same.
        notes: what else to know.
    """

    names: Mapping[str, tuple[str, ...]]
    leaves: tuple[PlannedLeaf, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Conversion:
    """How torch's weights become Flax's.

    Attributes:
        mapping: a mapping file of `migrate weights` that says what becomes of each key.
        drop: regular expressions of torch's keys that Flax's model has no use for.
        example: the shapes of the model's inputs; None: not images.
    """

    mapping: Path | None = None
    drop: Sequence[str] = ()
    example: Sequence[tuple[int, ...]] | None = None


def same_names(weights: Path) -> WeightMap:
    """Every name is its own."""
    return WeightMap({name: (name,) for name in shapes_in(weights)})


def bring(truth: Side, other: Side, work: Path, conversion: Conversion) -> WeightMap:
    """Give the other side the truth's weights.

    Args:
        truth: torch's side, if one is; its names are those of the map.
        other: the side that gets them.
        work: a folder for what is passed.
        conversion: how.

    Raises:
        ParityError, ConversionError: they do not fit; it says which.
    """
    own = work / "from-truth.safetensors"
    truth.ask(protocol.SaveWeights(own))
    if truth.kind not in _TORCH or other.kind in _TORCH:
        try:
            other.ask(protocol.LoadWeights(own))
        except ParityError as error:  # the file is ours: say whose weights are in it
            what = error.what.replace(f"the weights of {own}", "the truth's weights")
            raise ParityError(what, "make the two models the same, with the same sizes") from None
        return same_names(own)
    names, pytree = _converted(truth, other, own, work, conversion)
    other.ask(protocol.LoadWeights(pytree))
    return names


def bring_back(truth: Side, other: Side, work: Path, conversion: Conversion) -> WeightMap:
    """Give the truth's side the other's weights; else as `bring`."""
    theirs, back = work / "from-other.safetensors", work / "back.safetensors"
    other.ask(protocol.SaveWeights(theirs))
    if truth.kind not in _TORCH or other.kind in _TORCH:
        truth.ask(protocol.LoadWeights(theirs))
        return same_names(theirs)
    truth.ask(protocol.ConvertBack(_without_constants(other, theirs, work), back))
    truth.ask(protocol.LoadWeights(back))
    return _converted(truth, other, back, work, conversion)[0]


def only_names(truth: Side, other: Side, work: Path, conversion: Conversion) -> WeightMap:
    """Which weights are which, where each side has its own; empty, with a note, where that is not known."""
    own = work / "from-truth.safetensors"
    truth.ask(protocol.SaveWeights(own))
    if truth.kind not in _TORCH or other.kind in _TORCH:
        return same_names(own)
    try:
        return _converted(truth, other, own, work, conversion)[0]
    except (ParityError, ConversionError) as error:
        return WeightMap({}, notes=(f"which weights are which is not known: {error}",))


def load_file(side: Side, file: Path, work: Path) -> None:
    """Give a side the weights in a torch checkpoint, or in a pytree on disk, of any format.

    Raises:
        ParityError, ConversionError: the file cannot be read or does not fit.
    """
    output = work / f"{file.stem}-{side.kind}.safetensors"
    if side.kind in _TORCH:
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
    except ParityError as error:  # it knows the copy only
        raise ParityError(error.what.replace(str(output), str(file)), error.remedy) from None


def _converted(
    torch: Side, flax: Side, state: Path, work: Path, conversion: Conversion
) -> tuple[WeightMap, Path]:
    """The state dict as a pytree with the names and shapes of the Flax side, in a file; and the names."""
    shapes, output, rules = (
        work / name for name in ("shapes.safetensors", "pytree.safetensors", "mapping.yaml")
    )
    if flax.kind != "jax":  # what a function takes, nobody knows
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
        )
    )
    leaves = _leaves(state, rules)
    names = {leaf.path: tuple(dict.fromkeys(piece.key for piece in leaf.pieces)) for leaf in leaves}
    if flax.constants is not None:
        whole = work / "pytree-and-constants.safetensors"
        write_leaves(whole, [*_arrays(output), *_arrays(flax.constants)], {}, overwrite=True)
        output = whole
    return WeightMap(names, leaves, notes), output


def _without_constants(flax: Side, file: Path, work: Path) -> Path:
    """A side's arrays without those that no checkpoint has, of which torch knows nothing."""
    if flax.constants is None:
        return file
    constants = {leaf.path for leaf in _arrays(flax.constants)}
    output = work / f"{file.stem}-weights.safetensors"
    kept = [leaf for leaf in _arrays(file) if leaf.path not in constants]
    write_leaves(output, kept, {}, overwrite=True)
    return output


def _arrays(file: Path) -> list[PytreeLeaf]:
    from converters.output.arrays import open_arrays

    found = open_arrays(file)
    return [
        PytreeLeaf(key, info, functools.partial(found.read, key))
        for key, info in found.infos.items()
    ]


def _leaves(state: Path, rules: Path) -> tuple[PlannedLeaf, ...]:
    from converters.planning import planned
    from converters.request import PlanOptions

    return planned(state, PlanOptions(mapping=rules)).plan.leaves
