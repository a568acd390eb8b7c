"""Requests to a side: a class each, created by the parent, answered in the process of the model.

    losses = side.ask(protocol.Train(settings, inputs, training))

A request's fields are passed to the process, the type in brackets is that of the answer, and `answer` runs
in the process. Both are passed between the processes as a line of JSON (`to_plain`, `to_typed`).
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
from migrate.parity.ground.alignment import LayerAlignment
from migrate.parity.ground.fitting import FittingResult
from migrate.parity.ground.results import Explanation, Section
from migrate.parity.ground.settings import TRUTH, SideSettings
from migrate.parity.inputs.set import InputSet, read_inputs
from migrate.parity.sides.capture import capture_into
from migrate.parity.sides.runner import Runner
from migrate.parity.sides.target import Target

Answer = TypeVar("Answer", covariant=True)
REQUESTS: dict[str, type[Request[Any]]] = {}


class Request(Generic[Answer]):
    """Request to a side.

    Attributes:
        words: name of the request, for messages.
    """

    words: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.words = re.sub(r"(?<!^)(?=[A-Z])", " ", cls.__name__).lower()
        REQUESTS[cls.__name__] = cls

    def answer(self, runner: Any) -> Answer:
        """Answer with the model of this process: by default, with the `Runner`'s method of the request's
        name.
        """
        fields = dataclasses.fields(cast("Any", self))
        arguments = {field.name: getattr(self, field.name) for field in fields}
        answer: Answer = getattr(runner, self.words.replace(" ", "_"))(**arguments)
        return answer


def to_plain(value: Any) -> Any:
    """Convert a request, an answer or a part of one for JSON."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, InputSet):
        return str(value.folder)
    if isinstance(value, LayerAlignment):
        return value.to_json()
    if dataclasses.is_dataclass(value):
        return {
            field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {name: to_plain(element) for name, element in value.items()}
    return [to_plain(element) for element in value] if isinstance(value, list | tuple) else value


def to_typed(kind: Any, value: Any) -> Any:
    """Convert the result of `to_plain` back to a value of this type."""
    of, inner = get_origin(kind), get_args(kind)
    if of in (Union, types.UnionType):
        (kind,) = (member for member in inner if member is not type(None))
        return None if value is None else to_typed(kind, value)
    if kind is Path:
        return Path(value)
    if kind is InputSet:
        return read_inputs(Path(value))
    if kind is LayerAlignment:
        return LayerAlignment.from_json(value)
    if dataclasses.is_dataclass(kind):
        dataclass_type: Any = kind
        hints = _hints(dataclass_type)
        return dataclass_type(
            **{name: to_typed(hints[name], plain) for name, plain in value.items()}
        )
    if of is tuple and inner[-1] is not Ellipsis:
        return tuple(to_typed(element, part) for element, part in zip(inner, value, strict=True))
    if of in (tuple, Sequence):
        return tuple(to_typed(inner[0], element) for element in value)
    if of is list:
        return [to_typed(inner[0], element) for element in value]
    return value


def answer_type(request: Request[Answer]) -> Any:
    """Type of the answer."""
    (base,) = type(request).__orig_bases__  # type: ignore[attr-defined]
    return get_args(base)[0]


@functools.cache
def _hints(what: Any) -> dict[str, Any]:
    return get_type_hints(what)


@dataclass(frozen=True)
class Load:
    """First message to the process of a side: the model to load."""

    words: ClassVar[str] = "load"
    target: Target
    seed: int


@dataclass(frozen=True)
class Loaded:
    """Loaded model: its kind, the weights that came with it, and `ComparedSide.lies_as_torch`."""

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

    settings: SideSettings
    inputs: InputSet
    drawn: bool = True

    def answer(self, runner: Runner) -> None:
        """Prepare the model; the answer is None."""
        runner.prepare(self.settings, self.inputs, drawn=self.drawn)


@dataclass(frozen=True)
class SaveWeights(Request[None]):
    """See `Runner.save_weights`."""

    file: Path


@dataclass(frozen=True)
class SaveComputed(Request[int]):
    """Write the buffers that a torch model computes and does not save; answer with their number."""

    file: Path

    def answer(self, runner: Any) -> int:
        """Return the number of buffers."""
        from migrate.parity.sides.torch.weights import save_computed

        return save_computed(runner.module, self.file)


@dataclass(frozen=True)
class LoadWeights(Request[None]):
    """See `Runner.load_weights`; the weights are restored when the process of a side restarts."""

    file: Path


@dataclass(frozen=True)
class Capture(Request[float]):
    """Write a dump; answer with the seconds of the plain passes (`sides.capture.capture_into`).

    Attributes:
        reference: the truth, and the alignment of this side with it; None: neither of the next two applies.
        forced: whether every layer is fed with the truth's inputs.
        measured: whether tensors of layers are measured against the truth instead of being written.
    """

    settings: SideSettings
    inputs: InputSet
    folder: Path
    layers: bool = True
    reference: Forced | None = None
    forced: bool = False
    measured: bool = False
    numbers: Sequence[int] | None = None

    def answer(self, runner: Runner) -> float:
        """Write the dump and return the seconds."""
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

    settings: SideSettings
    inputs: InputSet
    cotangents: Path
    into: Path


@dataclass(frozen=True)
class Train(Request[list[float]]):
    """See `Runner.train`."""

    settings: SideSettings
    inputs: InputSet
    training: requests.Training


@dataclass(frozen=True)
class InTraining(Request[requests.TrainingDraws]):
    """See `Runner.in_training`."""

    settings: SideSettings
    inputs: InputSet
    cotangents: Path
    into: Path
    batches: int
    drawn: tuple[requests.HostDrawn, ...] = ()


@dataclass(frozen=True)
class Generate(Request[requests.Generated]):
    """See `Runner.generate`."""

    settings: SideSettings
    inputs: InputSet
    tokens: int
    output: str


@dataclass(frozen=True)
class MeasureTopK(Request[Section]):
    """Measure the approximate top-k operations of a JAX side on its device; a section without checks:
    none.
    """

    settings: SideSettings
    inputs: InputSet


@dataclass(frozen=True)
class LowerProgram(Request[tuple[str, program.Format]]):
    """Write the model's program on the first input to a file; answer with its name and format."""

    settings: SideSettings
    inputs: InputSet
    file: Path

    def answer(self, runner: Any) -> tuple[str, program.Format]:
        """Write the program; return its name and format."""
        lowered: program.CompilerProgram = runner.program(self.settings, self.inputs)
        self.file.write_bytes(lowered.data)
        return lowered.name, lowered.format


@dataclass(frozen=True)
class ConvertBack(Request[None]):
    """Write Flax's weights in the form of this torch side's model."""

    state: Path
    output: Path

    def answer(self, runner: Any) -> None:
        """See `sides.torch.convert`."""
        from migrate.parity.sides.torch.convert import to_torch

        to_torch(runner.module, self.state, self.output)


@dataclass(frozen=True)
class Convert(Request[tuple[str, ...]]):
    """Write the weights of this torch side's model in the form of a Flax side.

    Attributes:
        to: "linen" or "nnx".
        state: file of the weights.
        output: file for the converted weights.
        shapes: a file with the wanted names and shapes; None: those of the conversion.
        mapping: a mapping file for the keys; None: the model's layers decide.
        rules: file for the mapping that was used.
        drop: regular expressions of torch's keys that Flax's model has no use for.
        example: the shapes of the model's inputs; None: not images.
        ported: whether the Flax side is a port of this model, which names its weights as the conversion does.
    """

    to: Literal["linen", "nnx"]
    state: Path
    output: Path
    shapes: Path | None
    mapping: Path | None
    rules: Path
    drop: Sequence[str] = ()
    example: Sequence[tuple[int, ...]] | None = None
    ported: bool = False

    def answer(self, runner: Any) -> tuple[str, ...]:
        """Convert the weights; return the notes of the conversion."""
        from converters.request import PlanOptions
        from migrate.parity.sides.torch.convert import to_flax

        options = PlanOptions(to=self.to, drop=self.drop)
        if self.mapping is not None:
            options = replace(options, mapping=self.mapping)
        else:
            options = replace(options, model=runner.module, example=self.example)
        return to_flax(options, self.state, self.output, self.shapes, self.rules, self.ported)


@dataclass(frozen=True)
class FindWeights(Request[FittingResult]):
    """Find the torch weights that each array of this Flax side's model is made of (`parity.fitting.search`).

    Attributes:
        settings: settings of the run: float64.
        inputs: inputs, of which the first is run.
        truth: torch's dump.
        state: torch's weights.
        rules: the mapping file with the usual Flax name of each key.
        computed: torch's buffers that no checkpoint holds; None: there are none.
    """

    settings: SideSettings
    inputs: InputSet
    truth: Path
    state: Path
    rules: Path
    computed: Path | None = None

    def answer(self, runner: Any) -> FittingResult:
        """Return the findings of the passes."""
        from migrate.parity.fitting.search import find

        return find(
            runner,
            self.settings,
            self.inputs,
            self.truth,
            self.state,
            self.rules,
            self.computed,
        )


@dataclass(frozen=True)
class Idle(Request[tuple[str, ...]]):
    """Find the arrays without influence on the outputs for the first input."""

    settings: SideSettings
    inputs: InputSet
    names: Sequence[str]


@dataclass(frozen=True)
class Explain(Request[Explanation]):
    """Explain why a layer diverges, asked of the torch side with the truth's model.

    Attributes:
        side: "A" or "B": the side that diverges.
        alignment: alignment of that side with the truth.
        truth, accumulated, local: dumps of the truth and of that side.
        layer, side_layer: names of the layer in the truth and on the side.
        number: number of the truth's call.
        inputs: inputs to inspect, the input that shows the divergence most first.
        relative_l2: relative L2 of the divergence.
        breached_locally: whether the local error is the breach.
    """

    side: str
    alignment: LayerAlignment
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
        """Return the causes."""
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
