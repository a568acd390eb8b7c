"""Moving averages of the weights that a script keeps beside its model: found by their values."""

from __future__ import annotations

import dataclasses
import functools
import math
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn

from migrate.train.optimizer.live import is_plain

Tensors = dict[str, torch.Tensor]
# Relative rounding of a weight in float32, a few times.
_ROUNDING = 5e-7
# A rule is known by this many updates, at least.
_LEAST = 3
_MOST_WORDS = 5  # significant digits of a decay that somebody writes
_LARGEST = 1e-3  # error of a decay that one observation shows


@dataclass(frozen=True)
class SeenDecay:
    """Decay of an average in one update.

    Attributes:
        value: the decay.
        error: how far rounding may move it.
    """

    value: float
    error: float


@dataclass(frozen=True)
class RecordedAverage:
    """Average of all trained weights.

    Attributes:
        name: name of the variable that holds it.
        decay: its decay as an expression of `step`, the number of earlier updates.
        last: its values after the last recorded update, by the step's names.
        owner: class of the object that holds it, and the object's plain attributes; None if no object does.
        lines: line of each statement that moves it → names there of neither weights, numbers nor functions.
    """

    name: str
    decay: str
    last: Mapping[str, torch.Tensor]
    owner: tuple[str, Mapping[str, Any]] | None = None
    lines: Mapping[int, frozenset[str]] = field(default_factory=dict)


class Averages:
    """Averages of the weights of a step.

    Args:
        step: the step.
        frame: the innermost frame of the script: its variables, and those of its callers, are searched.
    """

    def __init__(self, step: nn.Module, frame: FrameType | None) -> None:
        self._trained = {n: p for n, p in step.named_parameters() if p.requires_grad}
        own = {id(p) for p in step.parameters()}
        self._held: dict[str, Callable[[], Tensors | None]] = {}
        self._values: dict[str, Tensors] = {}
        self._decays: dict[str, list[SeenDecay]] = {}
        self._owners: dict[str, tuple[str, Mapping[str, Any]]] = {}
        self._moved: dict[str, None] = {}
        self._lines: dict[str, dict[int, frozenset[str]]] = {}
        self._passed: tuple[int, Mapping[str, Any]] = 0, {}
        self._versions: dict[str, Any] = {}
        while frame is not None:
            for name, value in [*frame.f_locals.items(), *frame.f_globals.items()]:
                for path, held in _candidates(name, value):
                    tensors = self._of(held())
                    if tensors is None or {id(x) for x in tensors.values()} & own:
                        continue
                    if path not in self._held:
                        if path != name:
                            plain = {k: v for k, v in vars(value).items() if is_plain(v)}
                            self._owners[path] = type(value).__qualname__, plain
                        self._held[path] = held
                        self._values[path] = _copied(tensors)
                        self._decays[path] = []
            frame = frame.f_back
        weights = {name: p.detach() for name, p in self._trained.items()}
        for path, tensors in list(self._values.items()):
            if not all(torch.equal(tensors[name], weights[name]) for name in weights):
                del self._held[path], self._values[path]  # it does not start from the weights

    def before(self, line: int, variables: Mapping[str, Any]) -> None:
        """Note which averages the statement before this one has moved.

        Args:
            line: line of the statement that runs next.
            variables: variables that it sees.
        """
        for path, held in self._held.items():
            now = _versions(held())
            if self._versions.setdefault(path, now) != now:
                at, seen = self._passed
                own = path.partition(".")[0]
                others = {n for n, value in seen.items() if n != own and not _is_of_average(value)}
                self._lines.setdefault(path, {})[at] = frozenset(others)
                self._versions[path] = now
        self._passed = line, variables

    def observe(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Note how far each average went to the weights that the last update left."""
        for path, held in list(self._held.items()):
            now = self._of(held())
            before = self._values[path]
            if now is None or not all(torch.equal(now[name], before[name]) for name in before):
                self._moved[path] = None
            seen = None if now is None else decay_between(before, _copied(now), weights)
            if now is None or seen is None:
                del self._held[path]
                continue
            self._values[path] = _copied(now)
            self._decays[path].append(seen)

    def recorded(self) -> RecordedAverage | None:
        """The first average with a known rule; None if there is none. Variables are let go."""
        self._passed = 0, {}
        for path in self._held:
            decay = decay_text(self._decays[path])
            if decay is not None:
                lines, owner = self._lines.get(path, {}), self._owners.get(path)
                return RecordedAverage(path, decay, self._values[path], owner, lines)
        return None

    def unknown(self) -> list[str]:
        """Names of copies of the weights that move by another rule than a known average."""
        known = {path for path in self._held if decay_text(self._decays[path]) is not None}
        return [path for path in self._moved if path not in known]

    def _of(self, named: Tensors | None) -> Tensors | None:
        """Tensors by the step's names, if they are one for each trained weight."""
        if named is None:
            return None
        short = {name.removeprefix("module."): x for name, x in named.items()}
        seen = {}
        for name, parameter in self._trained.items():
            own = name.partition(".")[2].removeprefix("module.")
            tensor = short.get(own)
            if tensor is None or tensor.shape != parameter.shape:
                return None
            seen[name] = tensor
        return seen


def _candidates(name: str, value: Any) -> Iterator[tuple[str, Callable[[], Tensors | None]]]:
    """Yield what may hold an average: a module, a dictionary of tensors, an object that has one of them."""
    if isinstance(value, nn.Module):
        yield name, lambda: dict(value.named_parameters())
    elif _is_tensors(value):
        yield name, lambda: dict(value)
    elif hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        for attribute, inner in list(vars(value).items()):
            if isinstance(inner, nn.Module) or _is_tensors(inner):
                yield f"{name}.{attribute}", functools.partial(_named, value, attribute)


def _is_of_average(value: Any) -> bool:
    """Whether a statement that reads a value may move an average alone: weights, numbers, functions."""
    if isinstance(value, Namespace | SimpleNamespace) or dataclasses.is_dataclass(value):
        value = vars(value)
    kinds = nn.Module | torch.Tensor | type | ModuleType | FunctionType | BuiltinFunctionType
    return isinstance(value, kinds) or is_plain(value)


def _versions(named: Tensors | None) -> Any:
    """Marks that change when a statement moves one of the tensors; those of an inference mode have none."""
    tensors = [x for x in (named or {}).values() if not x.is_inference()]
    return [(id(x), x._version) for x in tensors]


def _named(owner: Any, attribute: str) -> Tensors | None:
    held = getattr(owner, attribute, None)
    if isinstance(held, nn.Module):
        return dict(held.named_parameters())
    return dict(held) if held is not None and _is_tensors(held) else None


def _is_tensors(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and len(value) > 0
        and all(isinstance(k, str) and isinstance(x, torch.Tensor) for k, x in value.items())
    )


def _copied(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def decay_between(
    before: Mapping[str, torch.Tensor],
    now: Mapping[str, torch.Tensor],
    weights: Mapping[str, torch.Tensor],
) -> SeenDecay | None:
    """The number d for which `now` is d * before + (1 - d) * weights; None if there is none."""
    away = [before[name].double() - weights[name].double() for name in weights]
    left = [now[name].double() - weights[name].double() for name in weights]
    square = sum(float((x * x).sum()) for x in away)
    size = sum(float(now[name].double().norm()) ** 2 for name in now) ** 0.5
    value = 0.0
    if square:
        value = sum(float((x * y).sum()) for x, y in zip(away, left, strict=True)) / square
    rest = sum(float((y - value * x).norm()) ** 2 for x, y in zip(away, left, strict=True)) ** 0.5
    # At a rate of 0 the average and the weights are one value, which shows no decay.
    error = _ROUNDING * size / square**0.5 if square else math.inf
    if rest > _ROUNDING * size or (error <= 0.5 and not -1e-3 <= value <= 1 + 1e-3):
        return None
    return SeenDecay(value, error)


def decay_text(decays: Sequence[SeenDecay]) -> str | None:
    """Return the rule of some decays as an expression of `step`; None if no known rule gives them all."""
    if len(decays) < _LEAST or all(decay.error > 0.5 for decay in decays):
        return None
    best = min(decays, key=lambda decay: decay.error)
    for seen in (best, decays[-1]):  # a warm-up ends at its constant
        for constant in _constants(seen):
            for text, rule in _rules(constant):
                if all(abs(rule(n) - d.value) <= 2 * d.error + 1e-9 for n, d in enumerate(decays)):
                    return text if 0 <= rule(len(decays)) < 1 else None
    return None


def constant_decay(decays: Sequence[SeenDecay]) -> float | None:
    """The one number that all decays are; None if they are not alike, or rounding hides it."""
    best = min(decays, key=lambda decay: decay.error)
    if best.error > _LARGEST:
        return None
    for constant in _constants(best):
        if all(abs(constant - d.value) <= 2 * d.error + 1e-9 for d in decays):
            return constant
    return None


def _constants(seen: SeenDecay) -> Iterator[float]:
    """Yield the numbers that somebody may have written for a decay, the shortest first."""
    for digits in range(1, _MOST_WORDS + 1):
        away = float(f"{1 - seen.value:.{digits}g}")
        yield float(f"{1 - away:.10g}")


def _rules(constant: float) -> Iterator[tuple[str, Callable[[int], float]]]:
    """Yield the known rules of a decay, as text and as a function of the number of earlier updates."""
    yield f"{constant!r}", lambda n: constant
    for first in (1, 2, 0, 3):
        above, below = first, first + 9
        yield (
            f"jnp.minimum({constant!r}, (step + {above}) / (step + {below}))",
            lambda n, above=above, below=below: min(constant, (n + above) / (n + below)),  # type: ignore[misc]
        )
        yield (
            f"(step + {first}) / (step + {first + 1})",
            lambda n, first=first: (n + first) / (n + first + 1),  # type: ignore[misc]
        )
