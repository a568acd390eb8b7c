"""What `migrate port` gives: frozen values that the reports show."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from migrate.parity.ground.results import LayerResult, Parity


@dataclass(frozen=True)
class Case:
    """One comparison of the port with its original.

    Attributes:
        name: what is special about it: "float32", "batch 1", "length 65".
        inputs: the shapes: "input_ids int64[2,64]".
        parity: the comparison; None: it could not be made, `error` says why.
        error: one line; "" otherwise.
        skipped: why it was not tried: the original itself does not take such inputs; "" otherwise.
    """

    name: str
    inputs: str
    parity: Parity | None
    error: str = ""
    skipped: str = ""

    @property
    def matches(self) -> bool:
        """Whether it speaks for the port, or at least not against it."""
        return bool(self.skipped) or (self.parity is not None and self.parity.matches)

    @property
    def worst(self) -> float | None:
        """Relative L2 of the worst output against float64."""
        if self.parity is None:
            return None
        found = [
            check.b
            for section in self.parity.sections
            if section.name == "outputs"
            for check in section.checks
            if check.b is not None
        ]
        return max(found, default=None)

    @property
    def first(self) -> LayerResult | None:
        """The first module that parts."""
        return None if self.parity is None else self.parity.first


@dataclass(frozen=True)
class Ported:
    """A port that was written.

    Attributes:
        folder: where.
        files: in it.
        target: what the user named.
        port: what the compiler gave (`converters.graph.Port`).
        weights: where the values in params.safetensors come from; "" without such a file.
        cases: the proof; empty: none was asked for, or stubs stand in the way.
        notes: what else to know, one line each.
        lost: files with edits of the user's that were written over.
    """

    folder: Path
    files: tuple[str, ...]
    target: str
    port: Any
    weights: str
    cases: tuple[Case, ...]
    notes: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    @property
    def matches(self) -> bool:
        """Whether the exit code is 0: nothing parts, and nothing is left to be filled in."""
        return all(case.matches for case in self.cases) and not self.port.missing
