"""Mistakes of an optimizer: the script's own, changed by each known mistake and run on the same gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from migrate.train.optimizer.recorded import RecordedClip, RecordedGroup, RecordedOptimizer
from migrate.train.optimizer.replay import torch_optimizer

_ADAM, _ADAMW = "torch.optim.adam.Adam", "torch.optim.adamw.AdamW"


def optimized(
    recorded: RecordedOptimizer,
    start: Mapping[str, Any],
    gradients: Mapping[str, Any],
    scales: Sequence[float],
    *,
    separate: bool = False,
) -> dict[str, Any]:
    """Run the script's optimizer on its own gradients, each time multiplied by one of `scales`.

    Args:
        recorded: the optimizer. Rates are those of its first updates.
        start: torch tensors by name.
        gradients: gradients by name; None where a parameter has none.
        scales: one factor for each update.
        separate: clip each parameter by its own norm.

    Returns:
        The tensors after the updates; those that are not trained as they were.
    """
    import torch

    parameters = {
        name: torch.nn.Parameter(torch.as_tensor(value).detach().double().clone())
        for name, value in start.items()
        if torch.as_tensor(value).is_floating_point()
    }

    def spare() -> Any:
        """A parameter for a group that is empty otherwise, which torch refuses."""
        return torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))

    groups = [
        [parameters[name] for name in group.names if name in parameters] or [spare()]
        for group in recorded.groups
    ]
    optimizer = torch_optimizer(recorded, groups)
    trained = {name for group in recorded.groups for name in group.names} & set(parameters)
    for update, scale in enumerate(scales):
        for name in trained:
            gradient = gradients.get(name)
            if gradient is not None:
                parameters[name].grad = torch.as_tensor(gradient).double() * scale
        for clip in recorded.clips:
            names = trained if clip.names is None else trained & set(clip.names)
            chosen = [parameters[name] for name in sorted(names)]
            _clip(clip, chosen, separate=separate)
        for number, group in enumerate(optimizer.param_groups):
            group["lr"] = recorded.rates[min(update, len(recorded.rates) - 1)][number]
            if recorded.momenta:
                momentum = recorded.momenta[min(update, len(recorded.momenta) - 1)][number]
                if "betas" in group:
                    group["betas"] = (momentum, group["betas"][1])
                elif "momentum" in group:
                    group["momentum"] = momentum
        optimizer.step()
    return {
        name: parameters[name].detach().float() if name in parameters else torch.as_tensor(value)
        for name, value in start.items()
    }


def _clip(clip: RecordedClip, chosen: list[Any], *, separate: bool) -> None:
    import torch

    if clip.kind == "value":
        torch.nn.utils.clip_grad_value_(chosen, clip.limit)
        return
    for part in [[parameter] for parameter in chosen] if separate else [chosen]:
        torch.nn.utils.clip_grad_norm_(part, clip.limit, clip.norm_type)


def mistakes(
    recorded: RecordedOptimizer, start: Mapping[str, Any]
) -> Iterator[tuple[str, RecordedOptimizer, dict[str, Any]]]:
    """Yield each known mistake in words, with the optimizer that has it and options of `optimized`."""
    decays = [float(group.options.get("weight_decay") or 0) for group in recorded.groups]
    if any(decays):
        most = max(decays)
        if not all(decays):
            what = "decay on biases: parameters that the script does not decay are decayed"
            yield what, _with(recorded, weight_decay=most), {}
        yield "lost weight decay", _with(recorded, weight_decay=0.0), {}
        yield (
            "lost decay on biases: the script decays parameters of one axis too",
            _split(recorded, start),
            {},
        )
        if recorded.name in (_ADAM, _ADAMW):
            what = "coupled weight decay (L2, Adam): the script's is decoupled (AdamW)"
            if recorded.name == _ADAM:
                what = "decoupled weight decay (AdamW): the script's is L2 (Adam)"
            other = _ADAM if recorded.name == _ADAMW else _ADAMW
            decoupled = _with(recorded, decoupled_weight_decay=other == _ADAMW)
            yield what, replace(decoupled, name=other), {}
    else:
        for decay in (0.01, 1e-4, 0.1, 5e-4):
            yield (
                f"weight decay of {decay:g}, the script has none",
                _with(recorded, weight_decay=decay),
                {},
            )
    yield from _of_clips(recorded)
    yield from _of_rates(recorded)
    yield from _of_options(recorded)


def _of_clips(
    recorded: RecordedOptimizer,
) -> Iterator[tuple[str, RecordedOptimizer, dict[str, Any]]]:
    if not recorded.clips:
        for limit in (1.0, 0.5, 5.0):
            clip = RecordedClip("norm", limit)
            yield (
                f"clipping to {limit:g}, the script does not clip",
                replace(recorded, clips=(clip,)),
                {},
            )
        return
    yield "lost clipping", replace(recorded, clips=()), {}
    yield (
        "clipping of each parameter by its own norm, not by the norm of all",
        recorded,
        {"separate": True},
    )
    for factor in (0.1, 0.5, 2.0, 5.0, 10.0):
        clips = tuple(replace(clip, limit=clip.limit * factor) for clip in recorded.clips)
        yield f"clipping to another limit: {clips[0].limit:g}", replace(recorded, clips=clips), {}
    other = {"norm": "value", "value": "norm"}
    clips = tuple(replace(c, kind=other[c.kind]) for c in recorded.clips)  # type: ignore[arg-type]
    yield (
        f"clipping by {clips[0].kind}, the script's is by {recorded.clips[0].kind}",
        replace(recorded, clips=clips),
        {},
    )


def _of_rates(
    recorded: RecordedOptimizer,
) -> Iterator[tuple[str, RecordedOptimizer, dict[str, Any]]]:
    rates = recorded.rates
    if len(set(rates)) > 1:
        later = replace(recorded, rates=(*rates[1:], rates[-1]))
        yield "schedule off by one: the first update has the second one's rate", later, {}
        earlier = replace(recorded, rates=(rates[0], *rates[:-1]))
        yield "schedule off by one: the second update has the first one's rate", earlier, {}
        constant = replace(recorded, rates=(rates[0],) * len(rates))
        yield "lost schedule: the rate stays that of the first update", constant, {}
    if any(len(set(update)) > 1 for update in rates):
        first = tuple((update[0],) * len(update) for update in rates)
        yield "all groups have the first group's learning rate", replace(recorded, rates=first), {}


def _of_options(
    recorded: RecordedOptimizer,
) -> Iterator[tuple[str, RecordedOptimizer, dict[str, Any]]]:
    options = recorded.groups[0].options
    if "betas" in options:
        for betas in ((0.9, 0.999), (0.9, 0.95), (0.9, 0.99), (0.5, 0.999), (0.9, 0.98)):
            changed = replace(_with(recorded, betas=betas), momenta=())
            if tuple(options["betas"]) != betas:
                yield f"other betas: {betas}, the script has {tuple(options['betas'])}", changed, {}
    if "eps" in options:
        for eps in (1e-8, 1e-6, 1e-5, 1e-3, 1e-7, 1e-10, 0.0):
            if options["eps"] != eps:
                yield (
                    f"another eps: {eps:g}, the script has {options['eps']:g}",
                    _with(recorded, eps=eps),
                    {},
                )
    if "momentum" in options:
        for momentum in (0.0, 0.9, 0.99, 0.95, 0.5):
            if options["momentum"] != momentum:
                changed = replace(_with(recorded, momentum=momentum, nesterov=False), momenta=())
                yield (
                    f"other momentum: {momentum:g}, the script has {options['momentum']:g}",
                    changed,
                    {},
                )
        if options["momentum"]:
            nesterov = not options.get("nesterov")
            what = "momentum of Nesterov, the script's is plain" if nesterov else "plain momentum"
            yield what, _with(recorded, nesterov=nesterov, dampening=0), {}
            if not options.get("dampening"):
                yield (
                    "momentum as a moving average (dampened), the script's is a sum",
                    _with(recorded, dampening=options["momentum"], nesterov=False),
                    {},
                )
    if "maximize" in options:
        yield (
            "the sign of the update: it climbs",
            _with(recorded, maximize=not options["maximize"]),
            {},
        )


def _with(recorded: RecordedOptimizer, **options: Any) -> RecordedOptimizer:
    groups = tuple(
        replace(group, options={**group.options, **options}) for group in recorded.groups
    )
    return replace(recorded, groups=groups)


def _split(recorded: RecordedOptimizer, start: Mapping[str, Any]) -> RecordedOptimizer:
    """The optimizer without decay of parameters of one axis, whose groups come after the others."""
    groups, rates = list[RecordedGroup](), list[int]()
    for number, group in enumerate(recorded.groups):
        flat = tuple(n for n in group.names if n in start and start[n].ndim <= 1)
        rest = tuple(n for n in group.names if n not in flat)
        without = {**group.options, "weight_decay": 0.0}
        groups += [replace(group, names=rest), replace(group, names=flat, options=without)]
        rates += [number, number]

    def spread(values: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(update[number] for number in rates) for update in values)

    return replace(
        recorded,
        groups=tuple(groups),
        rates=spread(recorded.rates),
        momenta=spread(recorded.momenta),
    )


def rate_cause(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Name the mistake of a schedule by its rates; "" if none is known."""

    def near(a: Sequence[float], b: Sequence[float]) -> bool:
        return bool(a) and all(
            math.isclose(x, y, rel_tol=1e-5, abs_tol=1e-12) for x, y in zip(a, b, strict=True)
        )

    for shift in (1, 2):
        if near(ours[:-shift], theirs[shift:]):
            return f"schedule off by {'one' if shift == 1 else shift}: each update has a later one's rate"
        if near(ours[shift:], theirs[:-shift]):
            return f"schedule off by {'one' if shift == 1 else shift}: each update has an earlier one's rate"
    if len(set(theirs)) > 1 and near(ours, [ours[0]] * len(ours)):
        return "lost schedule: the rate never changes"
    ratios = [a / b for a, b in zip(ours, theirs, strict=True) if b]
    if ratios and near(ratios, [ratios[0]] * len(ratios)):
        return f"every rate is {ratios[0]:.4g} times the script's"
    first = next(
        (n for n, (a, b) in enumerate(zip(ours, theirs, strict=True)) if not near([a], [b])), 0
    )
    return f"from update {first} on: {ours[first]:.6g}, the script has {theirs[first]:.6g}"
