"""Why the first layer parts: asked of the process of the torch side, which can try variants of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from migrate.parity.dump.dump import Dump
from migrate.parity.ground.alignment import Alignment
from migrate.parity.ground.results import Cause
from migrate.parity.ground.settings import TRUTH
from migrate.parity.sides.side import Side


class Explanation(NamedTuple):
    """The causes that were found, the most reliable first, and what to know of the search."""

    causes: tuple[Cause, ...] = ()
    notes: tuple[str, ...] = ()


def explain(
    asked: Side,
    side: str,
    alignment: Alignment,
    truth: Path,
    accumulated: Path,
    local: Path | None,
    *,
    layer: str,
    side_layer: str,
    number: int,
    inputs: tuple[int, ...],
    relative_l2: float,
    breached_locally: bool,
    work: Path,
) -> Explanation:
    """Ask for the causes.

    Args:
        asked: the side with the truth's torch model.
        side: "A" or "B", which parts.
        alignment: of that side with the truth.
        truth, accumulated, local: dumps of the truth and of that side.
        layer, side_layer: the names of the layer in the truth and at the side.
        number: the truth's call of it.
        inputs: to look at, the one that shows it most first.
        relative_l2: how far it parts.
        breached_locally: whether by its own error.
        work: a folder for what is passed.
    """
    file = work / f"explained-{side}.alignment.json"
    file.write_text(alignment.to_json())
    found = asked.ask(
        {
            "do": "explain",
            "side": side,
            "alignment": str(file),
            "truth": str(truth),
            "accumulated": str(accumulated),
            "local": None if local is None else str(local),
            "layer": layer,
            "side_layer": side_layer,
            "number": number,
            "inputs": inputs,
            "relative_l2": relative_l2,
            "breached_locally": breached_locally,
        }
    )
    return Explanation(tuple(Cause(**one) for one in found["causes"]), tuple(found["notes"]))


def explain_for(runner: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """What the process of the torch side does of that."""
    from migrate.parity.causes import Context
    from migrate.parity.causes import explain as explained

    truth, accumulated = Dump(Path(request["truth"])), Dump(Path(request["accumulated"]))
    local = None if request["local"] is None else Dump(Path(request["local"]))
    model, _ = runner.variant(TRUTH)
    context = Context(
        request["layer"],
        request["number"],
        truth,
        local,
        accumulated,
        Alignment.from_json(Path(request["alignment"]).read_text()),
        request["side_layer"],
        accumulated.layers[request["side_layer"]].settings,
        truth.layers[request["layer"]].settings,
        accumulated.facts.dtype,
        request["relative_l2"],
        request["breached_locally"],
        request["side"],
        tuple(request["inputs"]),
    )
    notes: list[str] = []
    causes = explained(model, context, note=notes.append)
    return {"causes": [dataclasses.asdict(cause) for cause in causes], "notes": notes}
