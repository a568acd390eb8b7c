"""Guess for a group of keys: the kind of layer, the confidence, and the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

# Kinds that are not classes of `torch.nn`; all others have torch's names.
NORM = "norm"
BATCH_NORM = "BatchNorm"
CONV1D = "Conv1D"  # GPT-2's: a Linear that stores its weight as (in, out)
PARAMETER = "Parameter"
BUFFER = "buffer"
DROPPED = "dropped"
UNKNOWN = "unknown"


class Confidence(StrEnum):
    """Confidence of a guess; only `ambiguous` is refused.

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
        confidence: the confidence.
        evidence: the names, shapes and related keys behind it, in a few words.
        options: other data needed to build the layer: {"heads": 8}.
        alternatives: the possible `--assume` values for an ambiguous guess.
    """

    kind: str
    confidence: Confidence
    evidence: str
    options: Mapping[str, int] = field(default_factory=dict)
    alternatives: tuple[str, ...] = ()


def certain(kind: str, evidence: str, **options: int) -> Guess:
    """Create a guess for which names and shapes allow no alternative."""
    return Guess(kind, Confidence.CERTAIN, evidence, options)


def likely(kind: str, evidence: str, **options: int) -> Guess:
    """Create a guess for which an unusual alternative exists."""
    return Guess(kind, Confidence.LIKELY, evidence, options)


def ambiguous(evidence: str, *alternatives: str) -> Guess:
    """Create an ambiguous guess, with the evidence for each alternative."""
    return Guess(UNKNOWN, Confidence.AMBIGUOUS, evidence, {}, alternatives)


@dataclass(frozen=True)
class GroupGuess:
    """Guess and its keys.

    Attributes:
        path: the path of the module ("encoder.layer.0.attn"); "" for the whole model.
        keys: the torch keys, in the checkpoint's order.
        shapes: their shapes.
        guess: the guess.
    """

    path: str
    keys: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    guess: Guess

    def as_json(self) -> dict[str, Any]:
        """Return the guess as plain values, for a report."""
        return {
            "path": self.path,
            "keys": list(self.keys),
            "kind": self.guess.kind,
            "confidence": self.guess.confidence.value,
            "evidence": self.guess.evidence,
            "alternatives": list(self.guess.alternatives),
        }
