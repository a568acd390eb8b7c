"""Parties of a comparison: the two sides, the truth and the emulation, as every task has them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from migrate.parity.align.weight_pairs import WeightPair
from migrate.parity.dump.dump import Dump
from migrate.parity.ground.alignment import TensorPair
from migrate.parity.ground.settings import SideSettings
from migrate.parity.inputs.set import InputSet
from migrate.parity.judge.profiles import Profile
from migrate.parity.sides.side import ComparedSide


@dataclass(frozen=True)
class Party:
    """Party of a comparison.

    Attributes:
        name: "A", "B", "T" or "E".
        side: the side that answers its requests.
        settings: settings of its runs.
        dump: its tensors on the inputs.
        outputs: its outputs, paired with the truth's.
        weights: its weights, paired with the truth's.
    """

    name: str
    side: ComparedSide
    settings: SideSettings
    dump: Dump
    outputs: tuple[TensorPair, ...]
    weights: tuple[WeightPair, ...] = ()

    def pair(self, truth: str) -> TensorPair | None:
        """Pair of its output with the truth's output of this path."""
        return next((pair for pair in self.outputs if pair.truth == truth), None)


@dataclass(frozen=True)
class Parties:
    """All parties of a comparison.

    Attributes:
        a, b: the two sides.
        truth: the truth, in float64.
        emulated: B's precision, emulated; None: there is no emulation.
        inputs: the inputs of all parties.
        work: a folder for files that are passed.
        depth: leaf layers of the truth, the L of √L.
        profile: the limits.
        seed: random seed of all draws.
    """

    a: Party
    b: Party
    truth: Party
    emulated: Party | None
    inputs: InputSet
    work: Path
    depth: int
    profile: Profile
    seed: int = 0

    @property
    def sides(self) -> tuple[Party, Party]:
        """Return A and B."""
        return self.a, self.b

    @property
    def outputs_limit(self) -> float:
        """Limit of the relative L2 of an output."""
        return self.profile.accumulated(self.operations)

    @property
    def operations(self) -> int:
        """The L of √L: the depth, or the number of modules with weights if no layers were captured."""
        names = (name for pair in self.truth.weights for name in pair.truths)
        return max(self.depth, len({re.split(r"[./](?=[^./]*$)", name)[0] for name in names}))

    def all(self) -> Iterator[Party]:
        """Yield all parties, the truth first."""
        yield self.truth
        yield from self.sides
        if self.emulated is not None:
            yield self.emulated


def same_outputs(dump: Dump) -> tuple[TensorPair, ...]:
    """Pair the outputs of a party that runs the truth's model: each is its own partner."""
    return tuple(TensorPair(ref.path, ref.path) for ref in dump.outputs.get(0, ()))
