"""Verdict on the comparison, and the sentence that explains it to a researcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from migrate.parity.ground.results import (
    LayerResult,
    LayerVerdict,
    ParityCause,
    ParityVerdict,
    Section,
    SideResult,
)
from migrate.parity.judge.judge import Breach, LayerJudgement
from migrate.parity.judge.limits import TensorFinding
from migrate.parity.judge.outputs import Outputs


@dataclass(frozen=True)
class Outcome:
    """Outcome of the comparison.

    Attributes:
        verdict: verdict on the whole.
        sentence: the verdict as a sentence.
        first: the layer where the models first diverge by their own operations.
        breach: the breach in that layer.
    """

    verdict: ParityVerdict
    sentence: str
    first: LayerResult | None = None
    breach: Breach | None = None


def first_parting(judged: LayerJudgement) -> tuple[LayerResult, Breach] | None:
    """Return the layer where the models first diverge by their own operations, and its breach.

    "First" is in the order of execution, in which a leaf ends before the layer that contains it. A layer's
    own error does not cause that of another, because each is fed with the truth's inputs.
    """
    if judged.first is None:
        return None
    return judged.first, judged.breaches[0]


def conclude(
    judged: LayerJudgement,
    outputs: Outputs,
    sections: Sequence[Section] = (),
    causes: Sequence[ParityCause] = (),
    *,
    truth: bool = True,
) -> Outcome:
    """Conclude the comparison.

    A side is worse if an own error of one of its layers breaches a limit, or an output does. The verdict is
    `PARTLY` if none does, but another section fails or an output is not compared. It is `NOT_FINITE` if the
    truth itself is NaN at the outputs.

    Args:
        judged: judgment on the layers.
        outputs: judgment on the outputs.
        sections: groups of further checks.
        causes: causes of the first breach, the likeliest first.
        truth: whether there is a truth; otherwise B is measured against A.
    """
    parting = {breach.side for breach in judged.breaches} | set(outputs.parting)
    failed = [section.name for section in (outputs.section, *sections) if not section.passed]
    undefined = outputs.undefined
    first = first_parting(judged)
    if first is not None:
        sentence = _divergence_sentence(*first, parting, causes, truth)
    elif parting:
        sentence = _unplaced(judged, outputs, parting, truth)
    elif undefined:
        sentence = _undefined(outputs, undefined, failed)
    elif outputs.apart:
        sentence = _unpaired_sentence(judged, outputs, truth)
    elif failed:
        sentence = f"{_matches(judged, outputs, truth)[:-1]}, but not everything does: {', '.join(failed)}."
    else:
        sentence = _matches(judged, outputs, truth)
    if outputs.apart and (first is not None or parting or undefined):
        sentence += f" Not compared: {'; '.join(outputs.apart)}."
    return Outcome(
        _verdict(parting, failed, undefined),
        sentence,
        None if first is None else first[0],
        None if first is None else first[1],
    )


def _verdict(
    parting: set[str], failed: Sequence[str], undefined: Mapping[str, int]
) -> ParityVerdict:
    if len(parting) == 2:
        return ParityVerdict.BOTH_WORSE
    if parting:
        return ParityVerdict.A_WORSE if "A" in parting else ParityVerdict.B_WORSE
    if undefined:
        return ParityVerdict.NOT_FINITE
    return ParityVerdict.PARTLY if failed else ParityVerdict.MATCH


def _matches(judged: LayerJudgement, outputs: Outputs, truth: bool) -> str:
    if "B" not in outputs.worst:
        return f"B matches A in all {len(judged.layers)} layers."
    name, output_finding = outputs.worst["B"]
    limit, error = f"{output_finding.limit:.1e}", output_finding.errors.relative_l2
    shown = _shown(name)
    if not truth:
        return f"B matches A: {shown} differs from A's by {error:.1e}, where {limit} is allowed."
    text = f"B matches A: {shown} is {error:.1e} from float64, where {limit} is allowed"
    if "A" in outputs.worst:
        text += f", and A's {outputs.worst['A'][1].errors.relative_l2:.1e}"
    if output_finding.ratio is not None:
        text += f"; that is {_ratio(output_finding)} (ρ {output_finding.ratio.value:.2g})"
    return text + "."


def _undefined(outputs: Outputs, undefined: Mapping[str, int], failed: Sequence[str]) -> str:
    """Sentence for NaN in the truth itself, which cannot match."""
    phrases = [f"{count} elements of {_shown(name)}" for name, count in undefined.items()]
    text = f"The float64 reference itself is not finite: {', '.join(phrases)} are NaN in float64"
    text += "; use inputs and weights for which the model returns finite numbers"
    others = [name for name in failed if name != outputs.section.name]
    return f"{text}. Besides, {', '.join(others)} failed." if others else f"{text}."


def _unpaired_sentence(judged: LayerJudgement, outputs: Outputs, truth: bool) -> str:
    """Sentence for models with different outputs, and the outputs that agree."""
    text = f"A and B do not return the same outputs: {'; '.join(outputs.apart)}"
    if "B" in outputs.worst:
        matches = _matches(judged, outputs, truth)
        return f"{text}. Of the rest, {matches}"
    return f"{text}."


def _shown(name: str) -> str:
    return "the output" if name == "0" else f"output {name}"


def _ratio(output_finding: TensorFinding) -> str:
    assert output_finding.ratio is not None
    if output_finding.ratio.value < 0.5:
        return "better than a correct run in this precision"
    if output_finding.ratio.value <= 2:
        return "no worse than a correct run in this precision"
    return "more than of a correct run in this precision, within the limit"


def _divergence_sentence(
    layer: LayerResult,
    breach: Breach,
    parting: set[str],
    causes: Sequence[ParityCause],
    truth: bool,
) -> str:
    both = {"A", "B"} if layer.verdict is LayerVerdict.BOTH_PART else {breach.side}
    who = "Both diverge" if len(both) == 2 else f"{breach.side} diverges"
    text = f"{who} at {layer.name or 'the model itself'} ({', '.join(_where(layer))})"
    if breach.place.what == "argument":
        text += f", in what it gives to {breach.place.layer}"
    text += f": {_own_error(breach.finding, truth)}"
    if causes:
        likely = "the cause" if causes[0].certain else "the likely cause"
        text += f"; {likely}: {causes[0].text.rstrip('.')}"
    if parting - both:
        text += f". {', '.join(sorted(parting - both))} diverges too, later"
    return text + "."


def _own_error(own_finding: TensorFinding, truth: bool) -> str:
    errors = own_finding.errors
    what = "its own error" if truth else "its own difference from A"
    if own_finding.why == "not finite":
        return f"{errors.not_finite} of {errors.elements} elements are NaN or infinite on one side only"
    if own_finding.why == "unequal":
        return f"{errors.relative_l2**2:.2%} of its integers or bools differ"
    if own_finding.why == "peak":
        return (
            f"{what} is {errors.max_over_rms:.1e} of the RMS in some elements, though "
            f"{errors.relative_l2:.1e} in all"
        )
    if own_finding.why == "ratio" and own_finding.ratio is not None:
        return f"{what} is {errors.relative_l2:.1e}, {own_finding.ratio.value:.2g} times a correct run's"
    if own_finding.why == "ulps":
        return f"{what} reaches {errors.ulps:.0f} units in the last place"
    return f"{what} is {errors.relative_l2:.1e} where {own_finding.limit:.1e} is allowed"


def _where(layer: LayerResult) -> list[str]:
    places = [_place(side) for side in (layer.a, layer.b) if side is not None and side.defined]
    return [layer.kind, *([" / ".join(dict.fromkeys(places))] if places else [])]


def _place(side: SideResult) -> str:
    """Location in the user's code; for a framework's layer, the line that calls it."""
    own = "-packages/" not in side.defined or not side.called
    return side.defined if own else side.called


def _unplaced(judged: LayerJudgement, outputs: Outputs, parting: set[str], truth: bool) -> str:
    """Sentence for a side with errors where no layer's own error breaches."""
    side = "B" if "B" in parting else "A"
    name, output_finding = outputs.worst[side]
    who = "Both are" if len(parting) == 2 else f"{side} is"
    shown = _shown(name)
    text = f"{who} off: {shown}: {_own_error(output_finding, truth)}".replace(
        "its own error", "the error"
    )
    carried = next(
        (
            layer
            for layer in judged.layers
            if layer.verdict in (LayerVerdict.CARRIED, LayerVerdict.UNFED)
        ),
        None,
    )
    if carried is not None:
        return f"{text}; the first layer with this error is {carried.name or 'the model itself'}."
    return f"{text}; {'no layer shows where' if judged.layers else 'there are no layers to show where'}."
