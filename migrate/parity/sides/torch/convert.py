"""Convert a torch model's weights to Flax's, or back, for `migrate.parity.align.weight_map`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converters.mapping.leaves import PlannedLeaf
from migrate.parity.sides.shapes import shapes_in

if TYPE_CHECKING:
    from converters.request import PlanOptions


def to_torch(module: Any, state: Path, output: Path) -> None:
    """Write Flax's weights with the names and layout of the torch model."""
    import converters

    converters.to_torch(state, model=module, output=output, overwrite=True)


def to_flax(
    options: PlanOptions,
    state: Path,
    output: Path,
    shapes: Path | None,
    rules: Path,
    ported: bool = False,
) -> tuple[str, ...]:
    """Write the torch model's weights with the names and shapes of the Flax side.

    Args:
        options: options of the conversion.
        state, output, shapes, rules, ported: see `protocol.Convert`.

    Returns:
        The notes of the conversion.
    """
    from converters.conversion import run_conversion
    from converters.mapping.file import save_mapping
    from converters.planning import planned
    from converters.request import ConversionRequest

    # A port names the parts that torch computes a weight from, and lacks what forward does not read.
    parts = replace(options, keep_parts=ported and options.mapping is None)
    if shapes is not None:
        if _fits(planned(state, parts).plan.leaves, shapes, spare=ported):
            options = parts
        elif not _fits(planned(state, options).plan.leaves, shapes):
            options = replace(options, target=str(shapes))
    done = run_conversion(ConversionRequest(state, output, overwrite=True, plan=options))
    save_mapping(done.plan, rules, done.api, overwrite=True)
    return tuple(done.notes)


def _fits(leaves: Sequence[PlannedLeaf], shapes: Path, spare: bool = False) -> bool:
    """Whether the plan produces the arrays of the model, and no others unless it may have spare ones."""
    arrays = {leaf.path: tuple(leaf.info.shape) for leaf in leaves}
    wanted = shapes_in(shapes)
    return arrays == wanted or (spare and wanted.items() <= arrays.items())
