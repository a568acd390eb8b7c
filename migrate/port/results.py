"""Results of `migrate port`: frozen values that the reports show."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from migrate.parity.ground.results import (
    LayerResult,
    LayerVerdict,
    Parity,
    ParityCheck,
    ParityVerdict,
)
from migrate.parity.sides.references import narrower
from migrate.parity.tasks.gradients import ALL_PARAMETERS
from migrate.parity.tasks.modes import SECTION
from migrate.port.generation.results import CachedCase
from migrate.port.mesh.results import MeshRun
from migrate.port.numerics.results import LIMIT, Numerics
from migrate.port.sizes.results import Sizes

# The names of the comparisons of gradients and of training mode, and of their sections.
GRADIENTS, TRAINING = "gradients", SECTION
# That of a TPU's precision, in which a model may be far from float64 by itself: a choice among near values.
LOW_PRECISION = "the precision of a TPU, emulated"

_SIDES = {"A": "the original", "B": "the port"}
_SIDE = re.compile(r"(?:^|(?<=\s))[AB](?=\s|'s\s)")


def with_sides(text: str) -> str:
    """Return a sentence of `migrate parity` with "the original" for A and "the port" for B."""
    return _SIDE.sub(lambda side: _SIDES[side[0]], text)


@dataclass(frozen=True)
class ProofCase:
    """A comparison of the port with its original.

    Attributes:
        name: what is special about it: "float32", "batch 1", "length 65".
        inputs: the shapes: "input_ids int64[2,64]".
        parity: the comparison; None: it could not be made, `error` says why.
        error: one line; "" otherwise.
        suspects: functions of the original with a gradient of their own, which the port lacks.
        skipped: why it was not tried: the original itself does not take such inputs, or has no gradients;
            "" otherwise.
        undefined: the rows for which the original gives NaN by itself: "row 0 (a row of padding)"; "" if
            no such rows are compared.
    """

    name: str
    inputs: str
    parity: Parity | None
    error: str = ""
    skipped: str = ""
    suspects: tuple[str, ...] = ()
    undefined: str = ""

    @property
    def matches(self) -> bool:
        """Whether it speaks for the port, or at least not against it."""
        if self.skipped or self.off_like_the_original or self.equal_but_undefined:
            return True
        return self.parity is not None and self.parity.matches

    @property
    def equal_but_undefined(self) -> bool:
        """Whether all is equal but in rows that are known to be NaN in the original."""
        parity = self.parity
        if parity is None or parity.verdict is not ParityVerdict.NOT_FINITE or not self.undefined:
            return False
        rows = [check for section in parity.sections for check in section.checks]
        return all(check.passed or check.undefined for check in rows)

    @property
    def filled(self) -> int:
        """Number of elements that are NaN in the original and numbers in the port."""
        return sum(check.filled for check in self._rows("outputs")) if self.undefined else 0

    @property
    def off_like_the_original(self) -> bool:
        """Whether the original itself is far from float64 in a TPU's precision, and the port not further.

        No layer parts in the port alone, and no output is more than `LIMIT` times as far off as its own.
        """
        parity = self.parity
        if parity is None or parity.verdict is not ParityVerdict.BOTH_WORSE:
            return False
        alone = any(layer.verdict is LayerVerdict.B_PARTS for layer in parity.layers)
        outputs = [check for check in self._rows("outputs") if not check.passed]
        near = all(check.a and check.b and check.b <= LIMIT * check.a for check in outputs)
        return self.name.endswith(LOW_PRECISION) and near and not alone

    @property
    def verdict(self) -> str:
        """The verdict in a few words."""
        if self.skipped:
            return f"not tried: {self.skipped}"
        if self.parity is None:
            return "could not be compared"
        if self.off_like_the_original:
            return "the original is off from float64 too"
        if self.equal_but_undefined:
            alone = f"match, but {self.undefined}: NaN in the original alone"
            return alone if self.filled else f"match; {self.undefined}: NaN on both sides"
        return "differs" if self._wrong() else with_sides(self.parity.verdict.value)

    @property
    def sentence(self) -> str:
        """The verdict for a reader, with what differs, or "" if nothing was compared."""
        if self.parity is None:
            return ""
        wrong = self._wrong()
        if not wrong:
            return self.parity.sentence
        worst = max(wrong, key=lambda check: check.b or 0.0)
        if not worst.name.startswith("gradient "):
            note = f" ({worst.note})" if worst.note else ""
            return (
                f"differs: {worst.name} in {TRAINING}: {worst.b:.1e}, where {worst.limit:.1e} is "
                f"allowed{note}; rows that differ: {len(wrong)}"
            )
        own = "" if worst.a is None else f" (the original's own in float32: {worst.a:.1e})"
        why = f"; {', '.join(self.suspects)}: a gradient of its own, which the port lacks"
        return (
            f"differs: the gradient of {_weight(worst.name)} is {worst.b:.1e} from float64's, "
            f"where {worst.limit:.1e} is allowed{own}; gradients that differ: {len(wrong)}"
            f"{why if self.suspects else ''}"
        )

    @property
    def worst(self) -> float | None:
        """Relative L2 of the worst output against float64."""
        return max(self._measured("outputs").values(), key=_rank, default=None)

    @property
    def worst_gradient(self) -> tuple[str, float] | None:
        """The parameter or input whose gradient is the worst, and its relative L2 against float64."""
        differences = self._measured(GRADIENTS) or {
            name: value
            for name, value in self._measured(TRAINING).items()
            if name.startswith(("gradient ", "statistics "))
        }
        name = max(differences, key=lambda name: _rank(differences[name]), default=None)
        return None if name is None else (_weight(name), differences[name])

    @property
    def own_gradient(self) -> float | None:
        """Relative L2 of the original's own gradient in float32, where the port's is the worst."""
        if self.worst_gradient is None:
            return None
        rows = [*self._rows(GRADIENTS), *self._rows(TRAINING)]
        own = [check.a for check in rows if _weight(check.name) == self.worst_gradient[0]]
        return own[0] if own else None

    def _wrong(self) -> list[ParityCheck]:
        """The rows of gradients or of training that failed, where nothing else did."""
        if self.parity is None or self.parity.verdict is not ParityVerdict.PARTLY:
            return []
        rows = [*self._rows(GRADIENTS), *self._rows(TRAINING)]
        return [check for check in rows if not check.passed]

    def _measured(self, section: str) -> dict[str, float]:
        """The rows of a section by name, each with the relative L2 of the port."""
        return {check.name: check.b for check in self._rows(section) if check.b is not None}

    def _rows(self, name: str) -> list[ParityCheck]:
        """The rows of a section, without those of several parameters together."""
        sections = () if self.parity is None else self.parity.sections
        rows = [check for section in sections if section.name == name for check in section.checks]
        return [check for check in rows if check.name != ALL_PARAMETERS]

    @property
    def reference(self) -> str:
        """Description of the reference if it is not float64 throughout; "" otherwise."""
        notes = () if self.parity is None else self.parity.notes
        return narrower(
            note.removeprefix("truth: ") for note in notes if note.startswith("truth: ")
        )

    @property
    def first(self) -> LayerResult | None:
        """The first module that differs."""
        return None if self.parity is None else self.parity.first


@dataclass(frozen=True)
class Initialization:
    """Comparison of the draws of `Model.init` with the original's factory.

    Attributes:
        arrays: how many were compared.
        builds: number of builds of the original, each with another seed.
        otherwise: arrays that start otherwise, which the compiler knew: key of the state dict → why, and what
            was measured.
        differs: other arrays that start otherwise: path → what was measured.
        error: why there was no comparison; "" otherwise.
        there: arrays that start otherwise at the second size only: path → what was measured; None: there is
            no second size.
    """

    arrays: int
    builds: int
    otherwise: Mapping[str, str]
    differs: Mapping[str, str]
    error: str = ""
    there: Mapping[str, str] | None = None

    @property
    def matches(self) -> bool:
        """Whether every array starts as the original's, at each size that was tried."""
        return not (self.otherwise or self.differs or self.error or self.there)


def _rank(difference: float) -> tuple[bool, float]:
    """Order of differences: NaN is worse than any number."""
    return math.isnan(difference), difference


def _weight(row: str) -> str:
    """The parameter or input that a row of gradients is about: "fc.weight", "input x"."""
    return row.removeprefix("gradient ").removeprefix("of ")


@dataclass(frozen=True)
class Ported:
    """A port that was written.

    Attributes:
        folder: folder of the port.
        files: files in the folder.
        target: what the user named.
        port: what the compiler gave (`converters.graph.Port`).
        weights: origin of the values in params.safetensors; "" without such a file.
        cases: the proof; empty: none was asked for, or stubs stand in the way.
        notes: what else to know, one line each.
        lost: files with edits of the user's that were written over.
        sizes: which sizes were proven, and which are held; None: none was tried.
        numerics: the proof in bfloat16.
        initialization: how `init` draws; None: it was not compared.
        cached: the proof of the cached forward; None: there was none.
        meshes: the proof on meshes of simulated devices.
    """

    folder: Path
    files: tuple[str, ...]
    target: str
    port: Any
    weights: str
    cases: tuple[ProofCase, ...]
    notes: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    sizes: Sizes | None = None
    numerics: tuple[Numerics, ...] = ()
    initialization: Initialization | None = None
    cached: CachedCase | None = None
    meshes: tuple[MeshRun, ...] = ()

    @property
    def matches(self) -> bool:
        """Whether the exit code is 0: nothing parts, and nothing is left to be filled in."""
        proven = all(case.matches for case in self.cases)
        in_bfloat16 = all(numeric.matches for numeric in self.numerics)
        start = self.initialization is None or self.initialization.matches
        cached = self.cached is None or self.cached.matches
        on_meshes = all(run.matches for run in self.meshes)
        scaled = cached and on_meshes
        return proven and in_bfloat16 and start and scaled and not self.port.missing
