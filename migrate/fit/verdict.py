"""Verdict on a program on a slice: does it compile, does it fit, what bounds it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from migrate.compiler.compile import Stats
from migrate.fit.lines import LineCost, StepBound, links_seconds
from migrate.fit.memory import LiveArray, Memory
from migrate.fit.products import Slice
from migrate.fit.waste import Waste
from migrate.fit.work import Collective

State = Literal["fits", "too big", "refused", "undetermined", "no collectives", "cut"]

_MANY = {
    "parameter": "parameters",
    "gradient": "gradients",
    "activation": "activations",
    "optimizer state": "optimizer state",
    "statistics": "statistics",
    "input": "inputs",
    "constant": "constants",
    "argument": "arguments",
    "output": "outputs",
    "temporary": "temporaries",
}


@dataclass(frozen=True)
class FitVerdict:
    """Verdict on one program on one slice.

    Attributes:
        product: the slice.
        state: "fits"; "too big" for its memory; "refused" by the compiler; "undetermined", with why; "no
            collectives" where several replicas train and nothing brings their gradients together; "cut" where
            a value is read inside of the step, so that what was compiled is not all of it.
        why: the reason, in one line, or "" if it fits.
        where: `file.py:line` of the reason, "" where none is known.
        remedy: what to do about it.
        stats: the compiler's figures, of the largest program of the step, or None if there are none.
        flops: operations that the compiler counts, of all programs of the step.
        needed: bytes of HBM that it takes (or would take), per device.
        beside: part of `needed`: weights and state of the step's other programs.
        available: bytes of HBM that a program may use.
        memory: what lies there at the fullest moment; of what is too big as it lies in a larger chip.
        trains: whether it is a step of training.
        roles, results: (kind, name) of the known arguments and outputs.
        explained_by: the slice that `memory` is of, where it is another one.
        collectives, bound, lines, waste: analysis of the compiled program.
        again: operations of products that the compiler does a second time, so that it fits.
        counted_once: locations of loops with an unknown number of iterations. The figures count one
            iteration.
        compiler: "libtpu 0.0.42.1 for TPU v5 lite".
        seconds: time that the compiler took.
        worked: seconds of processors in these; 0 where that is not known.
        cached: date of a cached answer.
    """

    product: Slice
    state: State
    why: str = ""
    where: str = ""
    remedy: str = ""
    stats: Stats | None = None
    flops: float = 0.0
    needed: int = 0
    beside: int = 0
    available: int = 0
    memory: Memory | None = None
    trains: bool = False
    roles: tuple[tuple[str, str], ...] = ()
    results: tuple[tuple[str, str], ...] = ()
    explained_by: str = ""
    collectives: tuple[Collective, ...] = ()
    bound: StepBound | None = None
    lines: tuple[LineCost, ...] = ()
    waste: tuple[Waste, ...] = ()
    again: float = 0.0
    counted_once: tuple[str, ...] = ()
    compiler: str = ""
    seconds: float = 0.0
    worked: float = 0.0
    cached: str = ""

    @property
    def fits(self) -> bool:
        """Whether it compiles and has room."""
        return self.state == "fits"

    @property
    def gaps(self) -> int:
        """Bytes that the compiler reserves beyond the arrays at the peak (gaps)."""
        return (
            max(0, self.needed - self.beside - self.memory.peak) if self.memory and self.fits else 0
        )

    def name_of(self, held: LiveArray) -> tuple[str, str]:
        """(kind, name) of an array: what the framework calls an argument, of others the operation.

        A value that the backward pass has made in the shape of a weight is taken for its gradient.
        """
        if held.kind == "argument" and 0 <= held.number < len(self.roles):
            kind, name = self.roles[held.number]
            return kind, name or held.name
        if held.kind == "output" and 0 <= held.number < len(self.results):
            kind, name = self.results[held.number]
            return ("gradient" if kind == "gradient" else "output"), name or held.name
        if self.trains and held.phase == "forward":
            return "activation", held.name
        if self.trains and held.phase == "backward" and held.array.of in self._weights:
            return "gradient", held.name
        return held.kind, held.name

    @cached_property
    def _weights(self) -> frozenset[tuple[str, tuple[int, ...]]]:
        """Dtypes and shapes of the weights."""
        there = self.memory.at_peak if self.memory else ()
        known = [
            held for held in there if held.kind == "argument" and held.number < len(self.roles)
        ]
        return frozenset(
            held.array.of for held in known if self.roles[held.number][0] == "parameter"
        )

    @property
    def exchanges(self) -> list[Exchange]:
        """The exchanges of one kind, group and line together."""
        groups: dict[tuple[str, int, bool, str], list[Collective]] = {}
        for collective in self.collectives:
            groups.setdefault(
                (collective.kind, collective.group, collective.overlapped, collective.source), []
            ).append(collective)
        return [
            Exchange(
                *key,
                sum(collective.times for collective in each),
                sum(collective.times * collective.bytes for collective in each),
                links_seconds(each, self.product.generation),
            )
            for key, each in groups.items()
        ]

    def by_kind(self) -> list[tuple[str, int]]:
        """Bytes at the peak by kind, the largest first."""
        sizes: dict[str, int] = {}
        for held in self.memory.at_peak if self.memory else ():
            kind = _MANY[self.name_of(held)[0]]
            sizes[kind] = sizes.get(kind, 0) + held.bytes
        return sorted(sizes.items(), key=lambda pair: -pair[1])


@dataclass(frozen=True)
class Exchange:
    """Exchanges of a kind at a line.

    Attributes:
        kind, group, overlapped, source: see `Collective`.
        times: how often a step has them.
        bytes: bytes that each device sends in all of them.
        seconds: least time that they take over all links of a chip.
    """

    kind: str
    group: int
    overlapped: bool
    source: str
    times: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class SliceResult:
    """The same step with one change, compiled.

    Attributes:
        what: the change ("bf16", "batch 16").
        verdicts: the verdicts, by slice.
    """

    what: str
    verdicts: tuple[FitVerdict, ...]


@dataclass(frozen=True)
class FitReport:
    """The answer of `migrate fit`.

    Attributes:
        target: what the user named.
        trains: whether it is a step of training.
        verdicts: the verdicts, by slice.
        notes: what holds for all of them.
        tried: results with the requested remedies.
        seconds: all together.
        host_seconds: processor time of the host for a step, measured here; 0 where it was not.
    """

    target: str
    trains: bool
    verdicts: tuple[FitVerdict, ...]
    notes: tuple[str, ...] = ()
    tried: tuple[SliceResult, ...] = ()
    seconds: float = 0.0
    host_seconds: float = 0.0

    @property
    def fine(self) -> bool:
        """Whether it fits everywhere it was asked of."""
        return all(verdict.fits for verdict in self.verdicts)
