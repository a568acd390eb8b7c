"""What a side is asked: a class each, made by the parent, answered in the process that holds the model.

    losses = side.ask(protocol.Train(settings, inputs, training))

A request's fields are what is passed, the type in brackets is that of the answer, and `answer` is what the
process does with it. Both go between the processes as a line of JSON (`to_plain`, `to_typed`).
"""

from __future__ import annotations

import dataclasses
import functools
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import (
    Any,
    ClassVar,
    Generic,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from migrate.compiler import program
from migrate.parity.dump.dump import Dump
from migrate.parity.dump.reference import Forced
from migrate.parity.ground import requests
from migrate.parity.ground.alignment import Alignment
from migrate.parity.ground.fitting import Found
from migrate.parity.ground.results import Explanation, Section
from migrate.parity.ground.settings import TRUTH, Settings
from migrate.parity.inputs.set import InputSet, read_inputs
from migrate.parity.sides.capture import capture_into
from migrate.parity.sides.runner import Runner
from migrate.parity.sides.target import Target

Answer = TypeVar("Answer", covariant=True)
REQUESTS: dict[str, type[Request[Any]]] = {}


class Request(Generic[Answer]):
    """Something that a side is asked.

    Attributes:
        words: its name, for messages.
    """

    words: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.words = re.sub(r"(?<!^)(?=[A-Z])", " ", cls.__name__).lower()
        REQUESTS[cls.__name__] = cls

    def answer(self, runner: Any) -> Answer:
        """Do it with the model of this process: by the `Runner`'s method of that name, if nothing else."""
        fields = dataclasses.fields(cast("Any", self))
        given = {one.name: getattr(self, one.name) for one in fields}
        found: Answer = getattr(runner, self.words.replace(" ", "_"))(**given)
        return found


def to_plain(value: Any) -> Any:
    """A request, an answer or what is in one, as JSON has it."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, InputSet):
        return str(value.folder)
    if isinstance(value, Alignment):
        return value.to_json()
    if dataclasses.is_dataclass(value):
        return {one.name: to_plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: to_plain(one) for name, one in value.items()}
    return [to_plain(one) for one in value] if isinstance(value, list | tuple) else value


def to_typed(kind: Any, value: Any) -> Any:
    """A value of this type, of what `to_plain` made of it."""
    of, inner = get_origin(kind), get_args(kind)
    if of in (Union, types.UnionType):
        (kind,) = (one for one in inner if one is not type(None))
        return None if value is None else to_typed(kind, value)
    if kind is Path:
        return Path(value)
    if kind is InputSet:
        return read_inputs(Path(value))
    if kind is Alignment:
        return Alignment.from_json(value)
    if dataclasses.is_dataclass(kind):
        made: Any = kind
        hints = _hints(made)
        return made(**{name: to_typed(hints[name], one) for name, one in value.items()})
    if of is tuple and inner[-1] is not Ellipsis:
        return tuple(to_typed(one, part) for one, part in zip(inner, value, strict=True))
    if of in (tuple, Sequence):
        return tuple(to_typed(inner[0], one) for one in value)
    if of is list:
        return [to_typed(inner[0], one) for one in value]
    return value


def answer_type(request: Request[Answer]) -> Any:
    """What it is answered with."""
    (base,) = type(request).__orig_bases__  # type: ignore[attr-defined]
    return get_args(base)[0]


@functools.cache
def _hints(what: Any) -> dict[str, Any]:
    return get_type_hints(what)


@dataclass(frozen=True)
class Load:
    """The first thing that is said to the process of a side: which model it is to hold."""

    words: ClassVar[str] = "load"
    target: Target
    seed: int


@dataclass(frozen=True)
class Loaded:
    """What was loaded: the kind that it is, the weights that came with it, `Side.lies_as_torch`."""

    kind: requests.Kind
    weights: Path | None
    lies_as_torch: bool = False


@dataclass(frozen=True)
class SuggestInputs(Request[InputSet]):
    """See `Runner.suggest_inputs`."""

    count: int
    seed: int
    folder: Path


@dataclass(frozen=True)
class Prepare(Request[None]):
    """See `Runner.prepare`."""

    settings: Settings
    inputs: InputSet
    drawn: bool = True

    def answer(self, runner: Runner) -> None:
        """Nothing."""
        runner.prepare(self.settings, self.inputs, drawn=self.drawn)


@dataclass(frozen=True)
class SaveWeights(Request[None]):
    """See `Runner.save_weights`."""

    file: Path


@dataclass(frozen=True)
class LoadWeights(Request[None]):
    """See `Runner.load_weights`; they come back when the process of a side starts again."""

    file: Path


@dataclass(frozen=True)
class Capture(Request[float]):
    """Write a dump; the seconds of the plain passes (`sides.capture.capture_into`).

    Attributes:
        reference: the truth, and how this side lies to it; None: neither of the next two.
        forced: whether every layer is fed with its inputs.
        measured: whether tensors of layers are measured against it instead of being written.
    """

    settings: Settings
    inputs: InputSet
    folder: Path
    layers: bool = True
    reference: Forced | None = None
    forced: bool = False
    measured: bool = False
    numbers: Sequence[int] | None = None

    def answer(self, runner: Runner) -> float:
        """The seconds."""
        return capture_into(
            runner,
            self.settings,
            self.inputs,
            self.folder,
            layers=self.layers,
            forced=self.reference if self.forced else None,
            measured=self.reference if self.measured else None,
            numbers=self.numbers,
        )


@dataclass(frozen=True)
class Gradients(Request[None]):
    """See `Runner.gradients`."""

    settings: Settings
    inputs: InputSet
    cotangents: Path
    into: Path


@dataclass(frozen=True)
class Train(Request[list[float]]):
    """See `Runner.train`."""

    settings: Settings
    inputs: InputSet
    training: requests.Training


@dataclass(frozen=True)
class InTraining(Request[requests.Trained]):
    """See `Runner.in_training`."""

    settings: Settings
    inputs: InputSet
    cotangents: Path
    into: Path
    batches: int
    drawn: tuple[requests.HostDrawn, ...] = ()


@dataclass(frozen=True)
class Generate(Request[requests.Generated]):
    """See `Runner.generate`."""

    settings: Settings
    inputs: InputSet
    tokens: int
    output: str


@dataclass(frozen=True)
class ApproximateTopK(Request[Section]):
    """The approximate top-k's of a JAX side, measured on its device; a section without checks: none."""

    settings: Settings
    inputs: InputSet


@dataclass(frozen=True)
class Program(Request[tuple[str, program.Format]]):
    """What a compiler gets of the model, on the first input: into a file; its name and format."""

    settings: Settings
    inputs: InputSet
    file: Path

    def answer(self, runner: Any) -> tuple[str, program.Format]:
        """Name and format."""
        made: program.CompilerProgram = runner.program(self.settings, self.inputs)
        self.file.write_bytes(made.data)
        return made.name, made.format


@dataclass(frozen=True)
class ConvertBack(Request[None]):
    """Write Flax's weights as those of this torch side's model."""

    state: Path
    output: Path

    def answer(self, runner: Any) -> None:
        """See `sides.torch.convert`."""
        from migrate.parity.sides.torch.convert import to_torch

        to_torch(runner.module, self.state, self.output)


@dataclass(frozen=True)
class Convert(Request[tuple[str, ...]]):
    """Write the weights of this torch side's model as a Flax side has them.

    Attributes:
        to: "linen" or "nnx".
        state: the weights.
        output: where the others go.
        shapes: a file with the names and shapes that are wanted; None: those of the conversion.
        mapping: a mapping file that says what becomes of each key; None: the model's layers do.
        rules: where the mapping that was used goes.
        drop: regular expressions of torch's keys that Flax's model has no use for.
        example: the shapes of the model's inputs; None: not images.
    """

    to: Literal["linen", "nnx"]
    state: Path
    output: Path
    shapes: Path | None
    mapping: Path | None
    rules: Path
    drop: Sequence[str] = ()
    example: Sequence[tuple[int, ...]] | None = None

    def answer(self, runner: Any) -> tuple[str, ...]:
        """The notes of the conversion."""
        from converters.request import PlanOptions
        from migrate.parity.sides.torch.convert import to_flax

        options = PlanOptions(to=self.to, drop=self.drop)
        if self.mapping is not None:
            options = replace(options, mapping=self.mapping)
        else:
            options = replace(options, model=runner.module, example=self.example)
        return to_flax(options, self.state, self.output, self.shapes, self.rules)


@dataclass(frozen=True)
class FindWeights(Request[Found]):
    """Which of torch's weights each array of this Flax side's model is made of (`parity.fitting.search`).

    Attributes:
        settings: how it runs: float64.
        inputs: of which the first is run.
        truth: torch's dump.
        state: torch's weights.
        rules: the mapping file that says what each key is in Flax's usual names.
    """

    settings: Settings
    inputs: InputSet
    truth: Path
    state: Path
    rules: Path

    def answer(self, runner: Any) -> Found:
        """What the passes found."""
        from migrate.parity.fitting.search import find

        return find(runner, self.settings, self.inputs, self.truth, self.state, self.rules)


@dataclass(frozen=True)
class Idle(Request[tuple[str, ...]]):
    """Which of these arrays have no influence on the outputs for the first input."""

    settings: Settings
    inputs: InputSet
    names: Sequence[str]


@dataclass(frozen=True)
class Explain(Request[Explanation]):
    """Why a layer parts: asked of the torch side that has the truth's model.

    Attributes:
        side: "A" or "B", which parts.
        alignment: of that side with the truth.
        truth, accumulated, local: dumps of the truth and of that side.
        layer, side_layer: the names of the layer in the truth and at the side.
        number: the truth's call of it.
        inputs: to look at, the one that shows it most first.
        relative_l2: how far it parts.
        breached_locally: whether by its own error.
    """

    side: str
    alignment: Alignment
    truth: Path
    accumulated: Path
    local: Path | None
    layer: str
    side_layer: str
    number: int
    inputs: tuple[int, ...]
    relative_l2: float
    breached_locally: bool

    def answer(self, runner: Any) -> Explanation:
        """The causes."""
        from migrate.parity.causes import Context, explain

        truth, accumulated = Dump(self.truth), Dump(self.accumulated)
        model, _ = runner.variant(TRUTH)
        context = Context(
            self.layer,
            self.number,
            truth,
            None if self.local is None else Dump(self.local),
            accumulated,
            self.alignment,
            self.side_layer,
            accumulated.layers[self.side_layer].settings,
            truth.layers[self.layer].settings,
            accumulated.facts.dtype,
            self.relative_l2,
            self.breached_locally,
            self.side,
            self.inputs,
        )
        notes: list[str] = []
        causes = explain(model, context, note=notes.append)
        return Explanation(causes, tuple(notes))
