"""Result of fitting weights to an existing model, as text and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from migrate.report.text.plain import finite

if TYPE_CHECKING:
    from rich.console import RenderableType

    from migrate.parity.fitting.results import Fit

_SHOWN = 5


def fit_summary(fit: Fit) -> Iterator[RenderableType]:
    """Yield the verdict, and where else the models part."""
    yield from map(escape, fit.notes)
    yield f"[bold]{escape(fit.sentence)}[/bold]"
    more = fit.differences[1:]
    for difference in more[:_SHOWN]:
        yield escape(f"    then {difference}")
    if len(more) > _SHOWN:
        yield f"    and {len(more) - _SHOWN} more"


def not_written(fit: Fit) -> Iterator[RenderableType]:
    """Yield the same, and what to do where nothing was written."""
    yield from fit_summary(fit)
    yield (
        "nothing was written: fix the target (`migrate parity` compares both models layer by layer), or "
        "accept the weights with --unproven"
    )


def fit_as_json(fit: Fit) -> dict[str, Any]:
    """Return the verdict as plain values."""
    return {
        "proven": fit.proven,
        "verdict": fit.sentence,
        "apart": finite(fit.apart),
        "inputs": fit.inputs,
        "layers": fit.layers,
        "passes": fit.passes,
        "idle": list(fit.idle),
        "altered": list(fit.altered),
        "computed": sorted(fit.computed),
        "differences": [
            {
                "layer": difference.layer,
                "torch": difference.truth,
                "after": difference.after,
                "inside": difference.inside,
                "apart": finite(difference.distance),
                "settings": difference.settings,
                "called": difference.called,
            }
            for difference in fit.differences
        ],
        "notes": list(fit.notes),
    }
