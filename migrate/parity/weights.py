"""One set of weights for both sides: the names of one, brought to those of the other.

Between torch modules they go as they are. Into Flax `converters` brings them, by the tree of torch modules,
fitted to the names and arrangement that the Flax model has; what cannot be placed is refused with its keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converters.mapping.leaves import PlannedLeaf
from migrate.parity.errors import ParityError
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


def same_names(weights: Path) -> WeightMap:
    """Every name is its own."""
    return WeightMap({name: (name,) for name in _names(weights)})


def share(
    first: Side, second: Side, work: Path, *, mapping: Path | None, drop: Sequence[str]
) -> WeightMap:
    """Give `second` the weights of `first`.

    Args:
        first, second: of these at most one is Flax's, or both are.
        work: a folder for what is passed.
        mapping: a mapping file of `migrate weights` that says what becomes of each key.
        drop: regular expressions of torch's keys that Flax's model has no use for.

    Returns:
        The Flax side's names in torch's, whichever side it is; all names in themselves where both sides
        are of one kind.

    Raises:
        ParityError, ConversionError: they do not fit; it says which.
    """
    own = work / "weights.safetensors"
    first.save_weights(own)
    if (first.kind in _TORCH) == (second.kind in _TORCH):
        second.load_weights(own)
        return same_names(own)
    if first.kind in _TORCH:
        return into_flax(first, second, own, work, mapping=mapping, drop=drop)
    request = {
        "do": "convert",
        "to": "torch",
        "state": str(own),
        "output": str(work / "back.safetensors"),
    }
    second.ask(request)
    second.load_weights(Path(request["output"]))
    return into_flax(second, first, Path(request["output"]), work, mapping=mapping, drop=drop)


def into_flax(
    torch: Side,
    flax: Side,
    state: Path,
    work: Path,
    *,
    mapping: Path | None,
    drop: Sequence[str],
) -> WeightMap:
    """Bring the state dict in `state` to the Flax side, as its names and shapes want it."""
    shapes, output, rules = (
        work / name for name in ("shapes.safetensors", "pytree.safetensors", "mapping.yaml")
    )
    flax.save_weights(shapes)
    notes = torch.ask(
        {
            "do": "convert",
            "to": "nnx" if flax.kind == "nnx" else "linen",
            "state": str(state),
            "shapes": str(shapes),
            "output": str(output),
            "mapping": None if mapping is None else str(mapping),
            "rules": str(rules),
            "drop": list(drop),
        }
    )
    flax.load_weights(output)
    leaves = _leaves(state, rules)
    names = {leaf.path: tuple(dict.fromkeys(piece.key for piece in leaf.pieces)) for leaf in leaves}
    return WeightMap(names, leaves, tuple(notes))


def convert_for(runner: Any, request: Mapping[str, Any]) -> list[str]:
    """What the process of a torch side does of that: see `into_flax` and `share`.

    Returns:
        The notes of the conversion.
    """
    state, output = Path(request["state"]), Path(request["output"])
    if request["to"] == "torch":
        from converters import to_torch

        to_torch(state, model=runner.module, output=output, overwrite=True)
        return []
    from converters import convert
    from converters.mapping.file import save_mapping
    from converters.planning import PlanOptions, planned

    options: PlanOptions = {"to": request["to"], "drop": request["drop"]}
    if request["mapping"] is not None:
        options["mapping"] = request["mapping"]
    else:
        options["model"] = runner.module
    if not _fits(planned(state, options).plan.leaves, Path(request["shapes"])):
        options["target"] = request["shapes"]
    done = convert(state, output=output, overwrite=True, **options)
    save_mapping(done.plan, Path(request["rules"]), done.api, overwrite=True)
    return list(done.notes)


def _fits(leaves: Sequence[PlannedLeaf], shapes: Path) -> bool:
    """Whether the plan gives just the arrays that the model has."""
    from safetensors import safe_open

    with safe_open(shapes, framework="numpy") as file:
        wanted = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    return wanted == {leaf.path: tuple(leaf.info.shape) for leaf in leaves}


def _leaves(state: Path, rules: Path) -> tuple[PlannedLeaf, ...]:
    from converters.planning import planned

    return planned(state, {"mapping": rules}).plan.leaves


def _names(weights: Path) -> list[str]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(weights, framework="numpy") as file:
            return list(file.keys())
    except (OSError, SafetensorError) as error:
        raise ParityError(f"{weights}: {error}", "check the file") from None
