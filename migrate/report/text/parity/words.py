"""Numbers, sides and places of a comparison as the terminal and the page say them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from migrate.counts import many as many
from migrate.parity.ground.results import LayerVerdict

if TYPE_CHECKING:
    from migrate.parity.ground.facts import RunFacts
    from migrate.parity.ground.results import (
        Errors,
        LayerResult,
        Parity,
        ParityCheck,
        Ratio,
        Section,
        SideResult,
    )

PARTING = frozenset({LayerVerdict.A_PARTS, LayerVerdict.B_PARTS, LayerVerdict.BOTH_PART})
_NAMED = 3  # layers of a layout
_VERDICTS = {
    LayerVerdict.MATCH: "match",
    LayerVerdict.A_PARTS: "A diverges",
    LayerVerdict.B_PARTS: "B diverges",
    LayerVerdict.BOTH_PART: "both diverge",
    LayerVerdict.CARRIED: "inherited",
    LayerVerdict.UNFED: "accumulated only",
    LayerVerdict.ALONE: "no partner",
    LayerVerdict.UNDEFINED: "reference is NaN",
}
# Losses, KL and rates of agreement read better with digits than as powers of ten.
_PLAIN_FROM, _PLAIN_TO = 1e-2, 1e5


def verdict(value: LayerVerdict) -> str:
    """Verdict on a layer, as the terminal and the page print it. The JSON has the value itself."""
    return _VERDICTS[value]


def size(value: float | None) -> str:
    """An error: two digits and a power of ten; "–" where there is none."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    return "0" if value == 0 else f"{value:.1e}"


def figure(value: float | None) -> str:
    """A statistic, which may be an error, a rate or a count."""
    if value is None or not math.isfinite(value) or value == 0:
        return size(value)
    if value == int(value) and abs(value) < _PLAIN_TO:
        return str(int(value))
    if _PLAIN_FROM <= abs(value) < _PLAIN_TO:
        return f"{value:.4g}"
    return f"{value:.1e}"


def ratio(value: Ratio | None) -> str:
    """ρ with its interval: "1.1 (0.9 … 1.3)"."""
    if value is None:
        return "–"
    return f"{_times(value.value)} ({_times(value.low)} … {_times(value.high)})"


def _times(value: float) -> str:
    if not math.isfinite(value):
        return size(value)
    return f"{value:.2g}" if abs(value) < 100 else f"{value:.0f}" if value < 1e5 else f"{value:.1e}"


def place(where: str) -> str:
    """`file.py:line` without what is above the installed packages."""
    for folder in ("site-packages/", "dist-packages/"):
        if folder in where:
            return where.rpartition(folder)[2]
    return where


def sentence(text: str) -> str:
    """A text with its files as `place` says them."""
    return re.sub(r"[^\s(]*/(?:site|dist)-packages/", "", text)


def notes(parity: Parity) -> list[str]:
    """Return the notes of the comparison without those of the sides."""
    own = {f"{letter}: {note}" for letter, entry in sides(parity) for note in entry.notes}
    return [note for note in dict.fromkeys(parity.notes) if note not in own]


def one_source(section: Section) -> str:
    """Return the source of a section's limits if all share it, else an empty string."""
    texts = {check.source for check in section.checks}
    return texts.pop() if len(texts) == 1 and len(section.checks) > 1 else ""


def source(side: SideResult) -> str:
    """Return where a side's layer is defined, and the line that calls it: "bert.py:31 ← 75"."""
    defined, called = place(side.defined), place(side.called)
    if not called:
        return defined
    file, _, line = called.rpartition(":")
    same = file and file == defined.rpartition(":")[0]
    return f"{defined} ← {line if same else called}"


def facts(entry: RunFacts) -> str:
    """Return one line about a side: device, precision, framework and versions."""
    precision = f"precision {entry.precision}" if entry.precision else ""
    parts = (
        entry.device,
        entry.dtype,
        entry.mode,
        f"{precision}, emulated on the CPU" if entry.emulated and precision else precision,
        " ".join(f"{name} {version}" for name, version in entry.versions.items()),
    )
    return ", ".join(part for part in parts if part)


def sides(parity: Parity) -> Iterator[tuple[str, RunFacts]]:
    """The sides by their letters, and the truth if there is one."""
    yield "A", parity.a
    yield "B", parity.b
    if parity.truth is not None:
        yield "truth", parity.truth


def two(layer: LayerResult) -> Iterator[tuple[str, SideResult]]:
    """The sides that have the layer."""
    if layer.a is not None:
        yield "A", layer.a
    if layer.b is not None:
        yield "B", layer.b


def where(layers: Sequence[LayerResult], layer: LayerResult, letter: str, side: SideResult) -> str:
    """`source`; of what is no layer at that side: before which line it is computed."""
    if side.defined or side.name:
        return source(side)
    after = _given_to(layers, layer, letter)
    return f"before {layer_name(after.name)} is called at {place(after.called)}" if after else ""


def _given_to(layers: Sequence[LayerResult], layer: LayerResult, letter: str) -> SideResult | None:
    """The side's layer in whose inputs one that it lacks itself was measured: the next beside it."""
    parent = layer.name.rpartition(".")[0]
    for entry in layers:
        beside = entry.order > layer.order and entry.name.rpartition(".")[0] == parent
        side = entry.a if letter == "A" else entry.b
        if beside and side is not None and side.called:
            return side
    return None


def is_first(parity: Parity, layer: LayerResult) -> bool:
    """Whether it is the first layer that parts."""
    first = parity.first
    return first is not None and (first.name, first.order) == (layer.name, layer.order)


def layer_name(name: str) -> str:
    """The name of a layer; that of the model itself is empty."""
    return name or "the model itself"


def side_name(layer: LayerResult, side: SideResult) -> str:
    """The name of a side's layer, and what speaks for it where that is not the usual."""
    if layer.name and not side.name:
        return f"(no layer of its own, measured {side.aligned})"
    usual = side.aligned in ("", "same model", "weights")
    return layer_name(side.name) + ("" if usual else f" (by {side.aligned})")


def layouts(side: SideResult) -> list[str]:
    """Return layouts of a side's tensors that differ from the reference: "output: axes 0, 2, 3, 1"."""
    texts: dict[str, list[str]] = {}
    for entry in side.layouts:
        name = entry.what if entry.path in ("", "0") else f"{entry.what} {entry.path}"
        texts.setdefault(entry.text, []).append(name)
    return [f"{' and '.join(dict.fromkeys(names))}: {text}" for text, names in texts.items()]


def all_layouts(parity: Parity) -> Iterator[tuple[str, str]]:
    """Yield the layouts of each side, with the layers that use them."""
    for letter in "AB":
        texts: dict[str, list[str]] = {}
        for layer in parity.layers:
            side = layer.a if letter == "A" else layer.b
            for text in {entry.text: None for entry in (side.layouts if side else ())}:
                # Sizes differ from layer to layer: what all have in common is the order.
                text = re.sub(r"reshaped to \(.*?\)", "reshaped", text)
                texts.setdefault(text, []).append(layer_name(layer.name))
        for text, names in texts.items():
            names = list(dict.fromkeys(names))
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            yield letter, f"{text} at {', '.join(names[:_NAMED])}{more}"


def parting_sides(layer: LayerResult) -> str:
    """The letters of the sides whose own operations part."""
    return {
        LayerVerdict.A_PARTS: "A",
        LayerVerdict.B_PARTS: "B",
        LayerVerdict.BOTH_PART: "AB",
    }.get(layer.verdict, "")


def pressure(error: Errors | None, limit: float) -> float | None:
    """An error as a multiple of its limit; None: not measured, or held to no limit."""
    if error is None:
        return None
    if error.not_finite or not math.isfinite(error.relative_l2):
        return math.inf
    if not math.isfinite(limit):
        return None
    return error.relative_l2 / limit if limit > 0 else math.inf if error.relative_l2 else 0.0


def pressures(layer: LayerResult) -> Iterator[tuple[float, Errors]]:
    """All errors of a layer, each with the multiple of its limit that it is."""
    for _, side in two(layer):
        for error, limit in (
            (side.local, layer.local_limit),
            (side.accumulated, layer.accumulated_limit),
        ):
            value = pressure(error, limit)
            if error is not None and value is not None:
                yield value, error


def error(entry: Errors | None) -> str:
    """The relative L2 of an error, or how many values of the tensor are not finite."""
    if entry is not None and entry.not_finite:
        return (
            f"{entry.not_finite} NaN"
            if entry.not_finite < _PLAIN_TO
            else f"{entry.not_finite:.0e} NaN"
        )
    return size(None if entry is None else entry.relative_l2)


def share(value: float) -> str:
    """A multiple of a limit in words: "25 % of its limit", "440 times its limit"."""
    if value >= 2:
        return f"{_times(value)} times its limit"
    return f"{100 * value:.0f} % of its limit" if value >= 0.005 else "below 1 % of its limit"


def limit(check: ParityCheck) -> str:
    """The limit of a check with its direction; "" where there is none."""
    if not math.isfinite(check.limit):
        return ""
    return f"{'≥' if check.at_least else '≤'} {figure(check.limit)}"


def nearest(section: Section) -> ParityCheck | None:
    """The check that comes nearest to a limit above it; None if none has one."""
    held = [
        check
        for check in section.checks
        if not check.at_least and check.b is not None and 0 < check.limit < math.inf
    ]
    return max(held, key=_nearness, default=None)


def _nearness(check: ParityCheck) -> float:
    values = [value for value in (check.a, check.b) if value is not None]
    if any(math.isnan(value) for value in values):
        return math.inf
    return max(values) / check.limit
