"""Results of a comparison: frozen values, which the reports show and nothing else computes.

A is the first side that the user named, B the second, T the truth in float64. E is the emulation: the
truth's model with the precision that B declares, in float32 on the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from migrate.parity.ground.facts import RunFacts


@dataclass(frozen=True)
class Errors:
    """Distance of a tensor from the truth, over all inputs together.

    Attributes:
        relative_l2: ‖x - t‖₂ / ‖t‖₂.
        max_over_rms: max |x - t| / rms(t).
        cosine: cosine of the angle between x and t; it is displayed, but decides nothing.
        ulps: the largest distance in units in the last place of the side's dtype; only for elementwise
            operations, else None.
        not_finite: number of NaN and infinities that the truth does not have, or of the truth's infinities
            that the side does not have.
        elements: number of elements.
        per_input: relative_l2 of each input, for the bootstrap.
        undefined: number of elements where the truth itself is NaN; they cannot be compared and count in
            none of the other figures.
        filled: number of these elements that are not NaN on the side.
    """

    relative_l2: float
    max_over_rms: float
    cosine: float
    ulps: float | None
    not_finite: int
    elements: int
    per_input: tuple[float, ...]
    undefined: int = 0
    filled: int = 0


@dataclass(frozen=True)
class Ratio:
    """Ratio ρ = err(side) / err(E), the geometric mean over the inputs, with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


class LayerVerdict(StrEnum):
    """Verdict on a layer."""

    MATCH = "match"  # all within the limits
    A_PARTS = "A parts"  # the local error of A's own operations exceeds the limit
    B_PARTS = "B parts"
    BOTH_PART = "both part"
    CARRIED = "carried"  # accumulated error above the limit, local error not: it comes from earlier layers
    UNFED = "not fed"  # its inputs have no partner: only its accumulated error is known
    ALONE = "no partner"  # not in both models
    UNDEFINED = "undefined"  # the truth itself is NaN somewhere; the comparable elements match


@dataclass(frozen=True)
class TensorLayout:
    """Layout of a tensor of a side's layer, if it differs from the truth's.

    Attributes:
        what: "argument" or "output".
        path: path of the tensor on the side; "" is the only one.
        split, axes, shape: the truth's tensor is reshaped to `split`, its axes are put into the order
            `axes`, and it is reshaped to `shape`; None: this step is left out.
    """

    what: str
    path: str
    split: tuple[int, ...] | None
    axes: tuple[int, ...] | None
    shape: tuple[int, ...] | None

    @property
    def text(self) -> str:
        """Layout in words."""
        return layout_text(self.split, self.axes, self.shape)


def layout_text(
    split: tuple[int, ...] | None, axes: tuple[int, ...] | None, shape: tuple[int, ...] | None
) -> str:
    """Layout in words: "axes 0, 2, 3, 1"; "" if it is the truth's."""
    steps = (
        "" if split is None else f"reshaped to {split}",
        "" if axes is None else f"axes {', '.join(map(str, axes))}",
        "" if shape is None else f"reshaped to {shape}",
    )
    return ", then ".join(filter(None, steps))


@dataclass(frozen=True)
class SideResult:
    """Results of one side's layer.

    Attributes:
        name: its name on the side.
        aligned: how its partner was found (`alignment.Pair.how`).
        defined, called: `file.py:line`.
        accumulated: error in an ordinary run of the model.
        local: error when fed with the truth's inputs; None: the layer could not be fed.
        ratio: ratio of the local error if there is one, else of the accumulated error; None: no emulation.
        layouts: layouts of its tensors that differ from the truth's.
    """

    name: str
    aligned: str
    defined: str
    called: str
    accumulated: Errors | None
    local: Errors | None
    ratio: Ratio | None
    layouts: tuple[TensorLayout, ...] = ()


@dataclass(frozen=True)
class LayerResult:
    """Results of a layer of the truth, or of a side's layer that the truth does not have.

    Attributes:
        name: its name in the truth ("encoder.layer.0.attention"); "" is the model itself.
        kind: the truth's class.
        order: position in which it ends, from 0.
        depth: number of leaf layers that ended before it, the L of √L.
        a, b: the sides; None where they have no such layer.
        emulated: E's accumulated and local relative L2.
        local_limit, accumulated_limit: limits of relative L2.
        verdict: the verdict on the layer.
    """

    name: str
    kind: str
    order: int
    depth: int
    a: SideResult | None
    b: SideResult | None
    emulated: tuple[float | None, float | None]
    local_limit: float
    accumulated_limit: float
    verdict: LayerVerdict


@dataclass(frozen=True)
class ParityCause:
    """Cause of a layer's divergence.

    Attributes:
        name: "gelu-form", the name of its page in docs/parity/causes.
        text: one sentence ("B's LayerNorm adds eps 1e-06, A's 1e-05").
        evidence: the evidence ("with it the truth's layer gives B's output: 3.1e-08 instead of 4.4e-06").
        certain: whether a variant reproduced the side's output; otherwise only the settings differ.
    """

    name: str
    text: str
    evidence: str
    certain: bool


@dataclass(frozen=True)
class Explanation:
    """Causes that were found, the most reliable first, and notes on the search."""

    causes: tuple[ParityCause, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ParityCheck:
    """Row of a comparison besides the layers: an output, a gradient, a statistic.

    Attributes:
        name: "output logits", "gradient encoder.layer.0.attention.self.query.weight", "KL p99.9".
        a, b: the values of the two sides, or b alone for a value between them (then a is None).
        limit: the maximum of b (and a), or the minimum if `at_least`.
        passed: the verdict.
        source: origin of the limit.
        note: further remarks.
        undefined: number of elements that are NaN in the truth itself.
        filled: number of these elements that are not NaN in B.
    """

    name: str
    a: float | None
    b: float | None
    limit: float
    passed: bool
    source: str
    at_least: bool = False
    note: str = ""
    undefined: int = 0
    filled: int = 0


@dataclass(frozen=True)
class Section:
    """Group of checks.

    The groups are "outputs", "gradients", "training", "logits", "generation", "batch", "excess precision"
    and "approximate top-k".

    Attributes:
        name: name of the group.
        checks: its rows.
        curves: name → values, to be drawn (losses of A, of B, the band's low and high).
        notes: one a line.
    """

    name: str
    checks: tuple[ParityCheck, ...]
    curves: tuple[tuple[str, tuple[float, ...]], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether all checks are within their limits."""
        return all(check.passed for check in self.checks)


class ParityVerdict(StrEnum):
    """Verdict on the whole comparison."""

    MATCH = "match"
    A_WORSE = "A is worse"
    B_WORSE = "B is worse"
    BOTH_WORSE = "both are off"
    PARTLY = "parts"  # a section failed (gradients, logits, …) though the layers match
    NOT_FINITE = "not finite"  # the truth itself is NaN at the outputs: they cannot be compared


@dataclass(frozen=True)
class Parity:
    """Result of the whole comparison.

    Attributes:
        a, b, truth: facts about the runs. truth is None without a truth (two dumps without --truth): B is
            then measured against A.
        profile: the name of the limits ("f32-highest"), and the limits, one a line, with their source.
        inputs: descriptions of the inputs, one a line.
        floor: the noise floor: relative L2 between two correct runs (E against T at the outputs).
        layers: results of layers, in order of execution.
        sections: groups of further checks.
        first: the first layer whose local error breaches.
        causes: causes of the divergence, the likeliest first.
        verdict, sentence: the verdict, and the sentence that explains it to a researcher.
        seconds: seconds spent, by step.
        histograms: layer name → (edges of log10 |error / rms(t)|, counts of A, counts of B), for the
            divergent layers and the outputs.
    """

    a: RunFacts
    b: RunFacts
    truth: RunFacts | None
    profile: str
    limits: tuple[str, ...]
    inputs: tuple[str, ...]
    floor: float
    layers: tuple[LayerResult, ...]
    sections: tuple[Section, ...]
    first: LayerResult | None
    causes: tuple[ParityCause, ...]
    verdict: ParityVerdict
    sentence: str
    seconds: tuple[tuple[str, float], ...] = ()
    histograms: tuple[tuple[str, tuple[float, ...], tuple[int, ...], tuple[int, ...]], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def matches(self) -> bool:
        """Whether the exit code is 0."""
        return self.verdict is ParityVerdict.MATCH
