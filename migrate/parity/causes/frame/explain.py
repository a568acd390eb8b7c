"""Try the variants of all patterns on a layer, and report those that compute what the side computes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.changes import several
from migrate.parity.causes.frame.compared_tensors import inside, looks
from migrate.parity.causes.frame.context import Context
from migrate.parity.causes.frame.pattern import Pattern, Variant
from migrate.parity.causes.frame.replay import Arguments, Replay
from migrate.parity.causes.frame.scene import Scene
from migrate.parity.causes.frame.trial import ALIKE, Gauge, Trial, VariantFit, rounded
from migrate.parity.dump.dump import Dump
from migrate.parity.ground.results import ParityCause

_SHOWN = 3


@dataclass(frozen=True)
class _MatchingVariant:
    """Variant that computes what the side computes."""

    pattern: Pattern
    variant: Variant
    fit: VariantFit
    where: str

    def order(self, best: float) -> tuple[Any, ...]:
        """Sort key: the most reliable variant first."""
        after = self.fit.after
        tier = 0.0 if after <= ALIKE * best else after
        where = -len(self.fit.spots), self.fit.spots[0]
        return not self.fit.whole, tier, self.pattern.rank, *where, after


class _TimeLimit:
    """Time limit of a search."""

    def __init__(self, seconds: float, note: Callable[[str], None]) -> None:
        self._seconds, self._note = seconds, note
        self._until = time.monotonic() + seconds

    def is_up(self, left: tuple[Pattern, ...]) -> bool:
        """Whether the time is over; if so, report the patterns that were not tried."""
        if time.monotonic() <= self._until:
            return False
        names = ", ".join(pattern.name for pattern in left[:_SHOWN])
        more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
        self._note(
            f"the search for causes ended after {self._seconds:g} s: {names}{more} not tried, or not in "
            "all variants"
        )
        return True


def explained(
    model: nn.Module,
    context: Context,
    patterns: tuple[Pattern, ...],
    seconds: float,
    note: Callable[[str], None],
) -> tuple[ParityCause, ...]:
    """See `causes.explain`."""
    causes = _tried(model, context, patterns, _TimeLimit(seconds, note))
    known = {cause.name for cause in causes}
    return (
        *causes,
        *(cause for cause in _causes_by_settings(context, patterns) if cause.name not in known),
    )


def _causes_by_settings(context: Context, patterns: tuple[Pattern, ...]) -> Iterator[ParityCause]:
    """Yield the causes that the settings alone show."""
    for pattern in patterns:
        text = pattern.differs(context.truth_settings, context.settings)
        if text:
            text = text.replace("{side}", context.side)
            yield ParityCause(
                pattern.name, text, "the settings differ; no variant was found that shows it", False
            )


def _tried(
    model: nn.Module, context: Context, patterns: tuple[Pattern, ...], clock: _TimeLimit
) -> tuple[ParityCause, ...]:
    dtype = getattr(torch, context.dtype, torch.float32)
    trials = list(_trials(model, context, dtype))
    if not trials:
        return ()
    with several(rounded(trials[0].scene, dtype)):
        matches = list(_matching_variants(trials, context, patterns, clock))
    best = max(min((match.fit.after for match in matches), default=0.0), context.noise / 8)
    named: dict[str, ParityCause] = {}
    for match in sorted(matches, key=lambda match: match.order(best)):
        evidence = match.variant.evidence or (
            f"so computed, the truth's layer is {match.fit.after:.1e} from {{side}}'s "
            f"instead of {match.fit.before:.1e}, {{where}}"
        )
        evidence, text = (
            words.replace("{side}", context.side).replace("{where}", match.where)
            for words in (evidence, match.variant.text)
        )
        cause = ParityCause(match.pattern.name, text, evidence, True)
        named.setdefault(cause.name, cause)
    return tuple(named.values())[:_SHOWN] or tuple(_suspected(trials[0], context, patterns))


def _suspected(
    trial: Trial, context: Context, patterns: tuple[Pattern, ...]
) -> Iterator[ParityCause]:
    if not Gauge(trial, context.noise).parting:
        return
    for pattern in patterns:
        text = pattern.suspected(trial.scene)
        if text:
            text = text.replace("{side}", context.side)
            yield ParityCause(pattern.name, text, "no variant gives what the side gives", False)


def _matching_variants(
    trials: list[Trial], context: Context, patterns: tuple[Pattern, ...], clock: _TimeLimit
) -> Iterator[_MatchingVariant]:
    scales = max(1, len(trials[0].scene.parts)) ** 0.5
    first, *others = [Gauge(trial, context.noise * scales) for trial in trials]
    if not first.parting:
        return
    for tried, pattern in enumerate(patterns):
        for variant in pattern.variants(first.trial.scene):
            if clock.is_up(patterns[tried:]):
                return
            fit = first.fit(variant)
            if fit is not None and all(
                _holds(pattern, variant.text, gauge, fit) for gauge in others
            ):
                yield _MatchingVariant(pattern, variant, fit, _where(first.trial, fit))


def _holds(pattern: Pattern, text: str, gauge: Gauge, fit: VariantFit) -> bool:
    """Whether the variant also computes what the side computes on another input."""
    again = next(
        (variant for variant in pattern.variants(gauge.trial.scene) if variant.text == text), None
    )
    if again is None:
        return False
    if not gauge.parting:
        return max(gauge.trial.distances(again)) <= max(ALIKE * fit.after, gauge.limit / 4)
    other = gauge.fit(again)
    return other is not None and other.whole >= fit.whole


def _where(trial: Trial, fit: VariantFit) -> str:
    """Words for the compared tensors."""
    spots = [trial.look.seen[number].spot for number in fit.spots]
    inner = list(dict.fromkeys(spot.layer for spot in spots if spot.layer is not None))
    return f"in what {', '.join(inner)} is given" if inner else "in what it gives"


def _trials(model: nn.Module, context: Context, dtype: torch.dtype) -> Iterator[Trial]:
    forced = frozenset(pair.truth for pair in context.alignment.pairs if pair.outputs)
    for look in looks(context):
        arguments = _arguments_of_model(context.truth, look.input)
        if arguments is None:
            continue
        try:
            replay = Replay(model, look.layer, look.number, arguments, forced - {look.layer}, dtype)
        except Exception:
            continue
        scene = Scene(model, look.layer, replay, context.settings, context.truth_settings)
        full = inside(context, look, replay.truth)
        if full.seen:
            yield Trial(scene, full, context.one_pass)


def _arguments_of_model(truth: Dump, number: int) -> Arguments | None:
    """The model's arguments on an input, from the truth's dump."""
    call = next(
        (
            call_of_model
            for call_of_model in truth.of("")
            if call_of_model.input == number and call_of_model.number == 0
        ),
        None,
    )
    if call is None or any("." in ref.path for ref in call.arguments):
        return None
    values = {ref.path: torch.from_numpy(truth.tensor(ref).copy()) for ref in call.arguments}
    positions = sorted((path for path in values if path.isdigit()), key=int)
    if [int(path) for path in positions] != list(range(len(positions))):
        return None
    named = {path: value for path, value in values.items() if not path.isdigit()}
    return tuple(values[path] for path in positions), named
