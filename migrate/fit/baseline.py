"""Compare with an earlier run and check limits, for a user's continuous integration."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from migrate.fit.errors import FitError

# What less than this part of a figure differs by is no change.
_SAME = 0.001
_FIGURES = {
    "HBM": ("hbm", "needed"),
    "lower bound": ("lower_bound", "seconds"),
    "operations": ("flops",),
}


def read_baseline(path: Path) -> Mapping[str, Any]:
    """The report that `migrate fit --json` has printed.

    Raises:
        FitError: it cannot be read, or is none.
    """
    try:
        baseline = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not JSON"
        raise FitError(
            f"{path}: cannot be read ({reason})", "pass the output of migrate fit --json"
        ) from None
    if not isinstance(baseline, dict) or not isinstance(baseline.get("slices"), list):
        raise FitError(
            f"{path}: not a report of migrate fit", "pass the output of migrate fit --json"
        )
    return baseline


def share_of(text: str) -> float:
    """0.9 of "90%".

    Raises:
        FitError: it is no share.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip())
    if match is None or not 0 < float(match[1]) <= 100:
        raise FitError(f"--max-hbm {text}: not a share", "write it as 90%")
    return float(match[1]) / 100


def compared(
    before: Mapping[str, Any] | None, now: Mapping[str, Any], most: float | None
) -> tuple[list[str], list[str]]:
    """Return what changed since `before`, and which limits are exceeded, one line each."""
    changes = list(_changes(before, now)) if before is not None else []
    return changes, list(_passed(now, most))


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    known = {slice_.get("slice"): slice_ for slice_ in before["slices"]}
    for slice_ in now["slices"]:
        name = slice_["slice"]
        if name not in known:
            yield f"{name}: was not asked for then"
            continue
        then = known[name]
        if then.get("state") != slice_["state"]:
            yield f"{name}: {then.get('state')} → {slice_['state']}"
        for what, path in _FIGURES.items():
            a, b = _figure(then, path), _figure(slice_, path)
            if a and b and abs(b - a) > _SAME * a:
                yield f"{name}: {what} {b / a - 1:+.1%}"
        exchanged = _kinds(then), _kinds(slice_)
        if exchanged[0] != exchanged[1]:
            yield f"{name}: exchanges {exchanged[0] or 'none'} → {exchanged[1] or 'none'}"


def _passed(now: Mapping[str, Any], most: float | None) -> Iterator[str]:
    for slice_ in now["slices"]:
        needed, available = slice_["hbm"]["needed"], slice_["hbm"]["available"]
        if most is not None and available and needed > most * available:
            yield f"{slice_['slice']}: {needed / available:.2%} of the HBM, more than {100 * most:g}%"


def _figure(slice_: Mapping[str, Any], path: tuple[str, ...]) -> float:
    figure: Any = slice_
    for name in path:
        figure = figure.get(name) if isinstance(figure, dict) else None
    return float(figure) if isinstance(figure, int | float) else 0.0


def _kinds(slice_: Mapping[str, Any]) -> str:
    counts: dict[str, int] = {}
    for each in slice_.get("collectives", ()):
        counts[each["kind"]] = counts.get(each["kind"], 0) + each["times"]
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
