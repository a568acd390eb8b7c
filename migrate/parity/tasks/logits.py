"""Logits: distance of the distributions, and agreement of the top tokens.

Everything is computed in float64 from each side's own logits, at every position of every input that is no
padding. The noise of a side's logits is σ, the standard deviation of their distance from the truth, less the
mean of each position, which does not change a softmax. A top token may differ only where the truth's margin
is below 6√2σ.

A fault makes σ large, and would make every position a near-tie. So σ is capped at twice the emulation's or,
without an emulation, at what the limit of the outputs allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np

from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.results import ParityCheck, Section
from migrate.parity.tasks.outputs import as_truth, compared_outputs, logits_path, output, positions
from migrate.parity.tasks.party import Parties, Party

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ids = np.ndarray[Any, np.dtype[np.int64]]
TOP = 5
# Minus infinity, the most negative number of a dtype and -1e9 all mean that a token is excluded.
MASKED = -9e8
_PIECE = 1 << 21  # elements in float64 at a time
_ALL = "every one where the truth's margin is above 6√2σ"


@dataclass
class Noise:
    """Noise of one party's logits, input by input.

    Attributes:
        errors: standard deviation of the distance from the truth.
        spread: standard deviation of the truth's logits themselves.
    """

    errors: list[float] = field(default_factory=list)
    spread: list[float] = field(default_factory=list)


@dataclass
class Tally:
    """Counts over all positions, of A, of B, or between the two.

    Attributes:
        kl: Kullback-Leibler divergence of each position.
        decisive, agreed: positions whose top token is certain, and those where it is the same.
        flipped: near-ties whose top token differs.
        edges, kept: the same for the k top tokens, where their edge is certain.
        positions: number of all positions.
    """

    kl: list[Floats] = field(default_factory=list)
    decisive: int = 0
    agreed: int = 0
    flipped: int = 0
    edges: int = 0
    kept: int = 0
    positions: int = 0


def compare_logits(parties: Parties, named: str | None = None) -> Section | None:
    """Compare the output that holds logits; None if the model has none.

    Args:
        parties: parties with dumps of the same inputs.
        named: path of that output in the truth; None: the output called logits.

    Raises:
        ParityError: there is no output of that name, or a side does not have it.
    """
    path = logits_path(parties.truth.dump, named)
    if path is None or (named is None and path not in compared_outputs(parties)):
        return None
    noises = {party.name: noise_of(parties, party, path) for party in parties.sides}
    allowed = allowed_noise(parties, path)
    tallies = {"A": Tally(), "B": Tally(), "A to B": Tally()}
    for number in range(parties.inputs.count):
        caps = {name: min(noise.errors[number], allowed[number]) for name, noise in noises.items()}
        caps["A to B"] = math.hypot(caps["A"], caps["B"])
        for truth, a, b in _pieces(parties, number, path, parties.sides):
            exact, ranked_a, other = (ranked(array) for array in (truth, a, b))
            gaps = margins(truth)
            count(tallies["A"], gaps, exact, ranked_a, caps["A"])
            count(tallies["B"], gaps, exact, other, caps["B"])
            count(tallies["A to B"], gaps, ranked_a, other, caps["A to B"])
    return _section(parties, path, noises, tallies)


def noise_of(parties: Parties, party: Party, path: str) -> Noise:
    """Measure the noise of a party's logits."""
    noise = Noise()
    for number in range(parties.inputs.count):
        error = spread = 0.0
        count = 0
        for truth, mine in _pieces(parties, number, path, (party,)):
            usable = np.isfinite(truth) & np.isfinite(mine) & (truth > MASKED) & (mine > MASKED)
            error += _centered(np.where(usable, mine, 0) - np.where(usable, truth, 0), usable)
            spread += _centered(np.where(usable, truth, 0), usable)
            count += int(usable.sum())
        noise.errors.append(math.sqrt(error / max(count, 1)))
        noise.spread.append(math.sqrt(spread / max(count, 1)))
    return noise


def allowed_noise(parties: Parties, path: str) -> list[float]:
    """Largest σ that a correct side may have, for each input."""
    if parties.emulated is not None and parties.emulated.pair(path) is not None:
        noise = noise_of(parties, parties.emulated, path)
        ratio = parties.profile.ratio.value
        # On a single input an emulation may be near by chance, and no float is nearer than its rounding.
        pooled = math.sqrt(math.fsum(error**2 for error in noise.errors) / len(noise.errors))
        return [
            ratio * max(error, pooled, parties.profile.floor * spread)
            for error, spread in zip(noise.errors, noise.spread, strict=True)
        ]
    truth = noise_of(parties, parties.truth, path)
    return [parties.outputs_limit * spread for spread in truth.spread]


def _centered(values: Floats, usable: np.ndarray[Any, np.dtype[np.bool_]]) -> float:
    """Sum of squares about the mean of each position."""
    counts = np.maximum(usable.sum(-1, keepdims=True), 1)
    means = values.sum(-1, keepdims=True) / counts
    return float(np.sum(np.where(usable, values - means, 0) ** 2))


def _pieces(
    parties: Parties, number: int, path: str, others: tuple[Party, ...]
) -> Iterator[tuple[Floats, ...]]:
    """Yield pieces of the positions: [positions, vocabulary] of the truth and of others, in float64."""
    truth = output(parties.truth.dump, number, path)
    if not truth.ndim or truth.shape[-1] < 2:
        raise ParityError(
            f"the output {path or 'of the model'} has the shape {truth.shape}, no logits",
            "name another with --logits",
        )
    arrays = [truth]
    for party in others:
        pair = party.pair(path)
        if pair is None:
            raise ParityError(
                f"{party.name} has no output that matches {path or 'the only output'} of the "
                "float64 reference",
                "name it with --outputs",
            )
        arrays.append(as_truth(pair, output(party.dump, number, pair.mine), truth.shape))
    kept = positions(parties, number, truth.shape[:-1])
    flat = [array.reshape(-1, truth.shape[-1])[kept] for array in arrays]
    rows = max(1, _PIECE // truth.shape[-1])
    for first in range(0, len(flat[0]), rows):
        yield tuple(array[first : first + rows].astype(np.float64) for array in flat)


@dataclass(frozen=True)
class Ranked:
    """Ranked tokens of some positions of one party.

    Attributes:
        logs: log-probabilities.
        first: top token of each position; -1 where there is a NaN.
        top: the `TOP` largest tokens, in the order of their ids; None for a smaller vocabulary.
    """

    logs: Floats
    first: Ids
    top: Ids | None


def ranked(logits: Floats) -> Ranked:
    """Rank the tokens of [positions, vocabulary]."""
    first = np.where(np.isnan(logits).any(-1), -1, logits.argmax(-1))
    top = None
    if logits.shape[-1] > TOP:
        top = np.sort(np.argpartition(logits, -TOP, axis=-1)[:, -TOP:], axis=-1)
    return Ranked(log_softmax(logits), first, top)


def margins(truth: Floats) -> tuple[Floats, Floats | None]:
    """Margin of each first token over the second, and of the last top token over the next token."""
    most = min(TOP + 1, truth.shape[-1])
    largest = np.sort(np.partition(truth, -most, axis=-1)[:, -most:], axis=-1)
    edge = _gap(largest[:, 1], largest[:, 0]) if most > TOP else None
    return _gap(largest[:, -1], largest[:, -2]), edge


def count(
    tally: Tally,
    gaps: tuple[Floats, Floats | None],
    first: Ranked,
    other: Ranked,
    noise: float,
) -> None:
    """Count some positions: whether `other` agrees with `first`, with certainty by the truth's margins."""
    tally.positions += len(first.first)
    tally.kl.append(divergence(first.logs, other.logs))
    doubt = 6 * math.sqrt(2) * noise
    decisive = ~(gaps[0] <= doubt)
    same = (first.first == other.first) & (other.first >= 0)
    tally.decisive += int(decisive.sum())
    tally.agreed += int((decisive & same).sum())
    tally.flipped += int((~decisive & ~same).sum())
    if gaps[1] is None or first.top is None or other.top is None:
        return
    clear = ~(gaps[1] <= doubt)
    tally.edges += int(clear.sum())
    tally.kept += int((clear & (other.first >= 0) & (first.top == other.top).all(-1)).sum())


def _gap(larger: Floats, smaller: Floats) -> Floats:
    with np.errstate(invalid="ignore"):
        return np.where(larger == smaller, 0.0, larger - smaller)


def divergence(p: Floats, q: Floats) -> Floats:
    """Return KL(p ‖ q) of each row, both as log-probabilities; infinite where q has a NaN that p has not."""
    with np.errstate(invalid="ignore"):
        terms = np.where(p > -np.inf, np.exp(p) * (p - q), 0.0)
    divergences = terms.sum(-1)
    # Rounding in float64 may leave -1e-16 where the two are equal.
    return np.where(np.isnan(divergences), np.inf, np.maximum(divergences, 0.0))


def log_softmax(logits: Floats) -> Floats:
    """Log-softmax along the last axis; masked tokens have no probability."""
    logits = np.where(logits <= MASKED, -np.inf, logits)
    with np.errstate(invalid="ignore"):
        shifted = logits - logits.max(-1, keepdims=True)
        logs: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return logs


def _section(
    parties: Parties, path: str, noises: dict[str, Noise], tallies: dict[str, Tally]
) -> Section:
    a, b, between = tallies["A"], tallies["B"], tallies["A to B"]
    checks = [
        *_divergences(parties, a, b, "from the truth"),
        *_divergences(parties, None, between, "A to B"),
    ]
    notes = [f"output {path or 'of the model'}: {a.positions} positions"]
    for name, first, second in (("", a, b), (", A against B", None, between)):
        checks += _agreements(f"top-1{name}", first, second, "decisive", "agreed")
        checks += _agreements(f"top-{TOP}{name}", first, second, "edges", "kept")
    for name, tally in tallies.items():
        ties = tally.positions - tally.decisive
        notes.append(
            f"{name}: {ties} of {tally.positions} positions are near-ties, in {tally.flipped} of them "
            "the top token differs"
        )
    for name, noise in noises.items():
        notes.append(f"{name}: σ of the logits' noise at most {max(noise.errors):.2e}")
    if not any(tally.decisive for tally in tallies.values()):
        notes.append("no position has a margin above 6√2σ: top tokens say nothing")
    return Section("logits", tuple(checks), notes=tuple(notes))


def _divergences(parties: Parties, a: Tally | None, b: Tally, what: str) -> Iterator[ParityCheck]:
    profile = parties.profile
    first = np.concatenate(a.kl) if a else None
    second = np.concatenate(b.kl)
    count = len(second)
    # χ² with one degree of freedom, as KL ≈ ½σ²: one in a thousand such comparisons exceeds this.
    extreme = NormalDist().inv_cdf(1 - 0.5e-3 / count) ** 2
    for name, of, limit, source in (
        ("mean", np.mean, profile.kl.value, profile.kl.source),
        ("p99.9", lambda kl: _quantile(kl, 0.999), profile.kl_tail.value, profile.kl_tail.source),
        (
            "max",
            np.max,
            extreme * profile.kl.value,
            f"{extreme:.3g} × the mean: the largest of {count} values of χ² with one degree",
        ),
    ):
        values = [None if kl is None else float(of(kl)) for kl in (first, second)]
        passed = all(value is None or value <= limit for value in values)
        yield ParityCheck(f"KL {what}, {name}", values[0], values[1], limit, passed, source)


def _quantile(values: Floats, share: float) -> float:
    """Quantile of the values, which may contain infinities."""
    return float(np.sort(values)[math.ceil(share * len(values)) - 1])


def _agreements(
    name: str, a: Tally | None, b: Tally, of: str, agreed: str
) -> Iterator[ParityCheck]:
    if not any(tally and getattr(tally, of) for tally in (a, b)):
        return
    values = [
        getattr(tally, agreed) / getattr(tally, of) if tally and getattr(tally, of) else None
        for tally in (a, b)
    ]
    passed = all(value is None or value == 1.0 for value in values)
    note = "; ".join(
        f"{getattr(tally, agreed)} of {getattr(tally, of)}" for tally in (a, b) if tally
    )
    yield ParityCheck(name, values[0], values[1], 1.0, passed, _ALL, at_least=True, note=note)
