"""What an inference says of a group of keys: the kind of layer, how sure that is, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

# Kinds that are no class of `torch.nn`; all others are named as there.
NORM = "norm"
BATCH_NORM = "BatchNorm"
CONV1D = "Conv1D"  # GPT-2's: a Linear that keeps its weight as (in, out)
PARAMETER = "Parameter"
BUFFER = "buffer"
DROPPED = "dropped"
UNKNOWN = "unknown"


class Confidence(StrEnum):
    """How sure a guess is; only `ambiguous` is refused.

    certain: names and shapes allow nothing else (or the user has said so). likely: they allow another
    reading, which the names speak against. ambiguous: the readings differ in their layout, and nothing
    decides.
    """

    CERTAIN = "certain"
    LIKELY = "likely"
    AMBIGUOUS = "ambiguous"
    ASSUMED = "assumed"


@dataclass(frozen=True)
class Guess:
    """The layer that a group of keys belongs to.

    Attributes:
        kind: the class in `torch.nn` ("Linear", "Conv2d", "LSTM"), or one of "norm" (Layer, RMS and
            GroupNorm, which convert alike), "BatchNorm" (of any rank), "Conv1D" (GPT-2's transposed
            Linear), "Parameter" (kept as it is), "buffer", "dropped", "unknown".
        confidence: how sure that is.
        evidence: the names, shapes and companions that say so, in a few words.
        options: what else is needed to build the layer: {"heads": 8}.
        alternatives: of an ambiguous guess, what `--assume` may say.
    """

    kind: str
    confidence: Confidence
    evidence: str
    options: Mapping[str, int] = field(default_factory=dict)
    alternatives: tuple[str, ...] = ()


def certain(kind: str, evidence: str, **options: int) -> Guess:
    """A guess that names and shapes leave no other reading of."""
    return Guess(kind, Confidence.CERTAIN, evidence, options)


def likely(kind: str, evidence: str, **options: int) -> Guess:
    """A guess that another reading, if an odd one, would contradict."""
    return Guess(kind, Confidence.LIKELY, evidence, options)


def ambiguous(evidence: str, *alternatives: str) -> Guess:
    """No guess: what speaks for each of the alternatives."""
    return Guess(UNKNOWN, Confidence.AMBIGUOUS, evidence, {}, alternatives)


@dataclass(frozen=True)
class GroupGuess:
    """A guess and the keys it is about.

    Attributes:
        path: the path of the module ("encoder.layer.0.attn"); "" for the whole model.
        keys: the torch keys, in the checkpoint's order.
        shapes: their shapes.
        guess: what they are.
    """

    path: str
    keys: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    guess: Guess

    def as_json(self) -> dict[str, Any]:
        """The same as plain values, for a report."""
        return {
            "path": self.path,
            "keys": list(self.keys),
            "kind": self.guess.kind,
            "confidence": self.guess.confidence.value,
            "evidence": self.guess.evidence,
            "alternatives": list(self.guess.alternatives),
        }
