"""What a comparison finds: frozen values that the reports show and nothing else computes.

A is the first side that the user named, B the second, T the truth in float64, E the emulation: the truth's
model with the precision that B declares, in float32 on the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from migrate.parity.ground.facts import Facts


@dataclass(frozen=True)
class Errors:
    """How far a tensor is from the truth; over all inputs together.

    Attributes:
        relative_l2: ‖x - t‖₂ / ‖t‖₂.
        max_over_rms: max |x - t| / rms(t).
        cosine: of the angle between x and t; for show, it decides nothing.
        ulps: the largest distance in units in the last place of the side's dtype; only of elementwise
            operations, else None.
        not_finite: number of NaN and infinities that the truth has not, or of the truth's infinities that
            the side has not.
        elements: number of elements.
        per_input: relative_l2 of each input, for the bootstrap.
        undefined: number of elements where the truth itself is NaN; nothing can be said of them, and they
            are in none of the other figures.
    """

    relative_l2: float
    max_over_rms: float
    cosine: float
    ulps: float | None
    not_finite: int
    elements: int
    per_input: tuple[float, ...]
    undefined: int = 0


@dataclass(frozen=True)
class Ratio:
    """ρ = err(side) / err(E), the geometric mean over the inputs, with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


class LayerVerdict(StrEnum):
    """What is said of a layer."""

    MATCH = "match"  # all within the limits
    A_PARTS = "A parts"  # A's own operations are off: the local error breaches
    B_PARTS = "B parts"
    BOTH_PART = "both part"
    CARRIED = (
        "carried"  # the accumulated error breaches, the local one does not: it came from before
    )
    UNFED = "not fed"  # its inputs have no partner: only its accumulated error is known
    ALONE = "no partner"  # not in both models
    UNDEFINED = "undefined"  # the truth itself is NaN somewhere; what can be compared matches


@dataclass(frozen=True)
class Layout:
    """How a tensor of a side's layer lies, where that is not as the truth's does.

    Attributes:
        what: "argument" or "output".
        path: which, at the side; "" the only one.
        split, axes, shape: the truth's tensor is reshaped to `split`, its axes are put into the order `axes`,
            and it is reshaped to `shape`; None: that is not done.
    """

    what: str
    path: str
    split: tuple[int, ...] | None
    axes: tuple[int, ...] | None
    shape: tuple[int, ...] | None

    @property
    def text(self) -> str:
        """In words."""
        return layout_text(self.split, self.axes, self.shape)


def layout_text(
    split: tuple[int, ...] | None, axes: tuple[int, ...] | None, shape: tuple[int, ...] | None
) -> str:
    """A layout in words: "axes 0, 2, 3, 1"; "" for that of the truth."""
    steps = (
        "" if split is None else f"reshaped to {split}",
        "" if axes is None else f"axes {', '.join(map(str, axes))}",
        "" if shape is None else f"reshaped to {shape}",
    )
    return ", then ".join(filter(None, steps))


@dataclass(frozen=True)
class Side:
    """What is known of one side's layer.

    Attributes:
        name: its name there.
        aligned: how its partner was found (`alignment.Pair.how`).
        defined, called: `file.py:line`.
        accumulated: error in the model as it runs.
        local: error when fed with the truth's inputs; None: it could not be.
        ratio: of the local error if there is one, else of the accumulated; None: no emulation.
        layouts: of its tensors that do not lie as the truth's do.
    """

    name: str
    aligned: str
    defined: str
    called: str
    accumulated: Errors | None
    local: Errors | None
    ratio: Ratio | None
    layouts: tuple[Layout, ...] = ()


@dataclass(frozen=True)
class LayerResult:
    """One layer of the truth, or of a side where the truth has none.

    Attributes:
        name: in the truth's naming ("encoder.layer.0.attention"); "" the model itself.
        kind: the truth's class.
        order: position in which it ends, from 0.
        depth: number of leaf layers that ended before it, the L of √L.
        a, b: the sides; None where they have no such layer.
        emulated: E's accumulated and local relative L2.
        local_limit, accumulated_limit: of relative L2.
        verdict: see there.
    """

    name: str
    kind: str
    order: int
    depth: int
    a: Side | None
    b: Side | None
    emulated: tuple[float | None, float | None]
    local_limit: float
    accumulated_limit: float
    verdict: LayerVerdict


@dataclass(frozen=True)
class Cause:
    """Why a layer parts.

    Attributes:
        name: "gelu-form", the name of its page in docs/parity/causes.
        text: one sentence ("B's LayerNorm adds eps 1e-06, A's 1e-05").
        evidence: what shows it ("with it the truth's layer gives B's output: 3.1e-08 instead of 4.4e-06").
        certain: whether a variant reproduced the side's output, or only the settings differ.
    """

    name: str
    text: str
    evidence: str
    certain: bool


@dataclass(frozen=True)
class Explanation:
    """The causes that were found, the most reliable first, and what to know of the search."""

    causes: tuple[Cause, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """One row of what is compared beside the layers: an output, a gradient, a statistic.

    Attributes:
        name: "output logits", "gradient encoder.layer.0.attention.self.query.weight", "KL p99.9".
        a, b: the values of the two sides, or B's alone where it is between them (then a is None).
        limit: what b (and a) must not exceed, or reach where `at_least`.
        passed: the verdict.
        source: where the limit comes from.
        note: what else to know.
    """

    name: str
    a: float | None
    b: float | None
    limit: float
    passed: bool
    source: str
    at_least: bool = False
    note: str = ""


@dataclass(frozen=True)
class Section:
    """Checks that belong together: "outputs", "gradients", "training", "logits", "generation",
    "batch", "excess precision", "approximate top-k".

    Attributes:
        name: see above.
        checks: its rows.
        curves: name → values, to be drawn (losses of A, of B, the band's low and high).
        notes: a line each.
    """

    name: str
    checks: tuple[Check, ...]
    curves: tuple[tuple[str, tuple[float, ...]], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether all of it is within its limits."""
        return all(check.passed for check in self.checks)


class Verdict(StrEnum):
    """The verdict of the whole comparison."""

    MATCH = "match"
    A_WORSE = "A is worse"
    B_WORSE = "B is worse"
    BOTH_WORSE = "both are off"
    PARTLY = "parts"  # a section failed (gradients, logits, …) though the layers match
    NOT_FINITE = "not finite"  # the truth itself is NaN at the outputs: nothing can be said of them


@dataclass(frozen=True)
class Parity:
    """The whole comparison.

    Attributes:
        a, b, truth: what ran. truth is None where there is none (two dumps without --truth): B is then
            measured against A.
        profile: the name of the limits ("f32-highest"), and what they are, a line each with the source.
        inputs: what was fed, a line each.
        floor: the noise floor: relative L2 between two correct runs (E against T at the outputs).
        layers: in order of execution.
        sections: what else was compared.
        first: the first layer whose local error breaches.
        causes: why, the likeliest first.
        verdict: and `sentence`, which says it to a researcher.
        seconds: what was spent, by part.
        histograms: layer name → (edges of log10 |error / rms(t)|, counts of A, counts of B), for the
            layers that part and the outputs.
    """

    a: Facts
    b: Facts
    truth: Facts | None
    profile: str
    limits: tuple[str, ...]
    inputs: tuple[str, ...]
    floor: float
    layers: tuple[LayerResult, ...]
    sections: tuple[Section, ...]
    first: LayerResult | None
    causes: tuple[Cause, ...]
    verdict: Verdict
    sentence: str
    seconds: tuple[tuple[str, float], ...] = ()
    histograms: tuple[tuple[str, tuple[float, ...], tuple[int, ...], tuple[int, ...]], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def matches(self) -> bool:
        """Whether the exit code is 0."""
        return self.verdict is Verdict.MATCH
