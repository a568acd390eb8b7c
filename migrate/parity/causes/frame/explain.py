"""Try the variants of all patterns on a layer, and say which give what the side gives."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from migrate.parity.causes.frame.changes import several
from migrate.parity.causes.frame.context import Context
from migrate.parity.causes.frame.look import looks
from migrate.parity.causes.frame.pattern import Pattern
from migrate.parity.causes.frame.replay import Arguments, Replay
from migrate.parity.causes.frame.scene import Scene
from migrate.parity.causes.frame.trial import Trial, rounded
from migrate.parity.dump import Dump
from migrate.parity.results import Cause

# A variant must bring the difference down at least by that, and below the side's noise.
GAIN = 10.0
# Residuals within this factor of each other are equally good: then the simpler pattern is believed.
ALIKE = 3.0
_SHOWN = 3


@dataclass(frozen=True)
class _Fit:
    """A variant that gives what the side gives."""

    pattern: Pattern
    text: str
    before: float
    after: float


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
    fits.sort(key=lambda fit: (_tier(fit.after, best), fit.pattern.rank, fit.after))
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
    first, *others = trials
    limit = context.noise * max(1, len(first.scene.parts)) ** 0.5
    before = first.distance()
    if before < context.noise / 4:
        return
    for pattern in patterns:
        for variant in pattern.variants(first.scene):
            if time.monotonic() > until:
                return
            after = first.distance(variant)
            if after > min(limit, before / GAIN):
                continue
            if all(_holds(pattern, variant.text, other, limit, after) for other in others):
                yield _Fit(pattern, variant.text, before, after)


def _holds(pattern: Pattern, text: str, trial: Trial, limit: float, after: float) -> bool:
    """Whether the variant gives what the side gives on another input too."""
    again = next((one for one in pattern.variants(trial.scene) if one.text == text), None)
    if again is None:
        return False
    return trial.distance(again) <= min(limit, max(trial.distance() / GAIN, ALIKE * after))


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
        yield Trial(scene, look)


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
