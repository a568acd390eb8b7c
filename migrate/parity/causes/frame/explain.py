"""Try the variants of all patterns on a layer, and say which give what the side gives."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from migrate.parity.causes.frame.changes import several
from migrate.parity.causes.frame.context import Context
from migrate.parity.causes.frame.look import inside, looks
from migrate.parity.causes.frame.pattern import Pattern
from migrate.parity.causes.frame.replay import Arguments, Replay
from migrate.parity.causes.frame.scene import Scene
from migrate.parity.causes.frame.trial import ALIKE, Gauge, Trial, rounded
from migrate.parity.dump import Dump
from migrate.parity.results import Cause

_SHOWN = 3


@dataclass(frozen=True)
class _Fit:
    """A variant that gives what the side gives; `whole`: in all that is seen of the layer."""

    pattern: Pattern
    text: str
    before: float
    after: float
    whole: bool


def explained(
    model: nn.Module, context: Context, patterns: tuple[Pattern, ...], seconds: float
) -> tuple[Cause, ...]:
    """See `causes.explain`."""
    found = _tried(model, context, patterns, time.monotonic() + seconds)
    known = {cause.name for cause in found}
    return (*found, *(cause for cause in _told(context, patterns) if cause.name not in known))


def _told(context: Context, patterns: tuple[Pattern, ...]) -> Iterator[Cause]:
    """What the settings alone tell."""
    for pattern in patterns:
        text = pattern.differs(context.truth_settings, context.settings)
        if text:
            text = text.replace("{side}", context.side)
            yield Cause(
                pattern.name, text, "the settings differ; no variant was found that shows it", False
            )


def _tried(
    model: nn.Module, context: Context, patterns: tuple[Pattern, ...], until: float
) -> tuple[Cause, ...]:
    dtype = getattr(torch, context.dtype, torch.float32)
    trials = list(_trials(model, context, dtype))
    if not trials:
        return ()
    with several(rounded(trials[0].scene, dtype)):
        fits = list(_fits(trials, context, patterns, until))
    best = max(min((fit.after for fit in fits), default=0.0), context.noise / 100)
    fits.sort(key=lambda fit: (not fit.whole, _tier(fit.after, best), fit.pattern.rank, fit.after))
    named: dict[str, Cause] = {}
    for fit in fits:
        evidence = (
            f"so computed, the truth's layer is {fit.after:.1e} from {context.side}'s "
            f"instead of {fit.before:.1e}"
        )
        cause = Cause(fit.pattern.name, fit.text.replace("{side}", context.side), evidence, True)
        named.setdefault(cause.name, cause)
    return tuple(named.values())[:_SHOWN]


def _tier(residual: float, best: float) -> float:
    return 0.0 if residual <= ALIKE * best else residual


def _fits(
    trials: list[Trial], context: Context, patterns: tuple[Pattern, ...], until: float
) -> Iterator[_Fit]:
    scales = max(1, len(trials[0].scene.parts)) ** 0.5
    gauges = [Gauge(trial, context.noise * scales) for trial in trials]
    first, *others = gauges
    if not first.parts:
        return
    for pattern in patterns:
        for variant in pattern.variants(first.trial.scene):
            if time.monotonic() > until:
                return
            fit = first.fit(variant)
            if fit is None:
                continue
            whole, after = fit
            if all(_holds(pattern, variant.text, other, whole, after) for other in others):
                yield _Fit(pattern, variant.text, first.before(whole), after, whole)


def _holds(pattern: Pattern, text: str, gauge: Gauge, whole: bool, after: float) -> bool:
    """Whether the variant gives what the side gives on another input too."""
    again = next((one for one in pattern.variants(gauge.trial.scene) if one.text == text), None)
    if again is None:
        return False
    if not gauge.parts:
        return max(gauge.trial.distances(again)) <= max(ALIKE * after, gauge.limit / 4)
    fit = gauge.fit(again)
    return fit is not None and fit[0] >= whole


def _trials(model: nn.Module, context: Context, dtype: torch.dtype) -> Iterator[Trial]:
    forced = frozenset(pair.truth for pair in context.alignment.pairs if pair.outputs)
    for look in looks(context):
        given = _given(context.truth, look.input)
        if given is None:
            continue
        try:
            replay = Replay(model, look.layer, look.number, given, forced - {look.layer}, dtype)
        except Exception:
            continue
        scene = Scene(model, look.layer, replay, context.settings, context.truth_settings)
        full = inside(context, look, replay.truth)
        if full.seen:
            yield Trial(scene, full)


def _given(truth: Dump, number: int) -> Arguments | None:
    """The model's arguments on that input, of the truth's dump."""
    call = next((one for one in truth.of("") if one.input == number and one.number == 0), None)
    if call is None or any("." in ref.path for ref in call.arguments):
        return None
    values = {ref.path: torch.from_numpy(truth.tensor(ref).copy()) for ref in call.arguments}
    positions = sorted((path for path in values if path.isdigit()), key=int)
    if [int(path) for path in positions] != list(range(len(positions))):
        return None
    named = {path: value for path, value in values.items() if not path.isdigit()}
    return tuple(values[path] for path in positions), named
