"""Result of `migrate train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Whether keys change the masks of dropout, and other random numbers of the loss.
DROPOUT, NOISE = "dropout", "random numbers"
# The comparison of the script with itself, from weights that are a rounding away.
STABILITY = "stability"
# The comparison of the script's losses with the rounding of their own terms.
CANCELLATION = "cancellation"
# The micro-batches' weights of a program with `--global-mean`.
GLOBAL_MEAN = "global mean"
# The comparison of the script's public names with the functions that every `interface.py` has.
NAMES = "names"
# Its verdict: such a name is a function of the script, too, which the interface then does not have.
TWO_MEANINGS = "two meanings"
# The verdict of what is equal within its limit, as `migrate prove` and `migrate parity` say it.
MATCH = "match"
# After the verdict of a stage in which the program differs from the script because it was asked to.
INTENDED = ", a difference is intended"


# Verdicts on the script itself, by comparison: what no program can be held to.
_OF_SCRIPT: Mapping[str, str] = {STABILITY: "amplifies", CANCELLATION: "cancels"}


@dataclass(frozen=True)
class TrainComparison:
    """Comparison of the program with the script's recorded run.

    Attributes:
        name: a name in `STAGES`.
        same: whether they are equal within the limit.
        worst: the largest relative difference; None where values are compared exactly.
        limit: the limit.
        what: what was compared, or the first difference.
        cause: the mistake that explains the difference; "" if there is none, or none is known.
        intended: whether the program differs from the script here because it was asked to.
        apart: distance of all weights together, relative to the way that training moved them; None where it
            was not measured.
    """

    name: str
    same: bool
    worst: float | None = None
    limit: float | None = None
    what: str = ""
    cause: str = ""
    intended: bool = False
    apart: float | None = None

    @property
    def stage(self) -> str:
        """The stage of the proof that it belongs to."""
        return next(stage for stage, names in STAGES.items() if self.name in names)

    @property
    def verdict(self) -> str:
        """The verdict in a word or two."""
        if self.name == NAMES:
            return TWO_MEANINGS
        if self.same:
            return "intended" if self.intended else MATCH
        measured = self.worst is not None
        return _OF_SCRIPT.get(self.name, "differs") if measured else "differs"


# What a reader of the report has to know of each stage.
STAGE_MEANINGS: Mapping[str, str] = {
    "interface": "state dict and functions of the program, by the script's names",
    "numeric": "one update in its parts, each on the script's own inputs",
    "behavioural": "several updates in a row, evaluation, random numbers and data",
}
# Stages of the proof, in order, with their comparisons.
STAGES: Mapping[str, tuple[str, ...]] = {
    "interface": ("parameters", "interface", NAMES),
    "numeric": (
        "start",
        "outputs",
        "gradients",
        GLOBAL_MEAN,
        "sum of gradients",
        "optimizer",
        "learning rates",
        CANCELLATION,
    ),
    "behavioural": (
        "losses",
        "weights",
        "average",
        "evaluation",
        DROPOUT,
        NOISE,
        "data",
        STABILITY,
    ),
}


def by_stage(comparisons: Sequence[TrainComparison]) -> list[TrainComparison]:
    """Return the comparisons in the order of their stages."""
    order = list(STAGES)
    return sorted(comparisons, key=lambda comparison: order.index(comparison.stage))


def meanings(comparisons: Sequence[TrainComparison]) -> list[str]:
    """Say what each stage of the comparisons is, a line each: "numeric: one update in its parts, …"."""
    own = dict.fromkeys(comparison.stage for comparison in by_stage(comparisons))
    return [f"{stage}: {STAGE_MEANINGS[stage]}" for stage in own]


def stages(comparisons: Sequence[TrainComparison]) -> dict[str, str]:
    """Verdict of each stage with a comparison: "match", or the comparisons that differ."""
    verdicts: dict[str, str] = {}
    for stage in STAGES:
        own = [comparison for comparison in comparisons if comparison.stage == stage]
        differ = [comparison.name for comparison in own if comparison.verdict == "differs"]
        if own:
            names = ", ".join(dict.fromkeys(differ))  # several updates have the same comparisons
            verdicts[stage] = f"differs in {names}" if differ else MATCH
            if any(comparison.verdict == "intended" for comparison in own):
                verdicts[stage] += INTENDED
            if any(comparison.verdict == TWO_MEANINGS for comparison in own):
                verdicts[stage] += f", {NAMES} of {TWO_MEANINGS}"
            for word in _OF_SCRIPT.values():
                if any(comparison.verdict == word for comparison in own):
                    verdicts[stage] += f", the script {word}"
    return verdicts


def limited(comparisons: Sequence[TrainComparison]) -> str:
    """Return why the script cannot be held to the limits, where all that is compared is the same.

    Returns:
        "amplifies": it moves away from itself by a rounding. "cancels": a loss is about the rounding of its
        terms. "" if neither is so, or the program differs.
    """
    verdicts = {comparison.verdict for comparison in comparisons}
    words = [word for word in _OF_SCRIPT.values() if word in verdicts]
    return words[0] if words and "differs" not in verdicts else ""


def has_two_meanings(comparisons: Sequence[TrainComparison]) -> bool:
    """Whether a name of the interface is a function of the script, too."""
    return any(comparison.verdict == TWO_MEANINGS for comparison in comparisons)


@dataclass(frozen=True)
class ProgramProof:
    """Comparison of a program, as it is now, with its script.

    Attributes:
        folder: folder of the program.
        script: the script.
        updates: number of updates that were compared.
        comparisons: all comparisons that could be made.
        error: why the program does not run, or cannot be compared; "" if it can.
        notes: what else to know.
    """

    folder: Path
    script: Path
    updates: int
    comparisons: tuple[TrainComparison, ...] = ()
    error: str = ""
    notes: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether the program ran, and every comparison holds."""
        return not self.error and all(comparison.same for comparison in self.comparisons)


@dataclass(frozen=True)
class TrainedProgram:
    """A written program.

    Attributes:
        folder: its folder.
        files: its files.
        script: the script.
        comparisons: comparisons with the recorded run; empty without a proof.
        left: parts of the script that the program does not have: position and statement.
        notes: what else to know.
        error: why the program did not run; "" if it ran.
    """

    folder: Path
    files: tuple[str, ...]
    script: Path
    comparisons: tuple[TrainComparison, ...] = ()
    left: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    error: str = ""

    @property
    def same(self) -> bool:
        """Whether the program ran, and every comparison holds."""
        return not self.error and all(comparison.same for comparison in self.comparisons)
