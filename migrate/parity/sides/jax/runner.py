"""Flax model or JAX function as a side: requests of the comparison, answered with JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from migrate.compiler.program import CompilerProgram, program_of_jax
from migrate.parity.dump.reference import Forced
from migrate.parity.dump.writer import DumpWriter
from migrate.parity.ground.errors import InputsError, ParityError
from migrate.parity.ground.facts import RunFacts
from migrate.parity.ground.requests import Generated, HostDrawn, Training, TrainingDraws
from migrate.parity.ground.results import Section
from migrate.parity.ground.settings import SideSettings
from migrate.parity.inputs.set import InputSet
from migrate.parity.sides.jax.arguments import CallParameters
from migrate.parity.sides.jax.capture.recorder import Watcher
from migrate.parity.sides.jax.model import FunctionModel, JaxModel
from migrate.parity.sides.jax.passes import Outputs, Passes, capture, in_user_code, watched
from migrate.parity.sides.jax.session import Session, device_name
from migrate.parity.sides.jax.weights import read_weights, write_weights

if TYPE_CHECKING:
    from migrate.parity.sides.jax.wide import Evaluation

_PACKAGES = ("jax", "jaxlib", "flax", "numpy")


class JaxRunner:
    """See `migrate.parity.sides.runner.Runner`.

    Args:
        model: a linen or nnx module, or a function.
        kind: kind of the model.
        shown: the user's name for it, for messages.
        start: for a function, the pytree of weights, or the function that returns it.
    """

    def __init__(
        self, model: Any, kind: Literal["linen", "nnx", "jax"], shown: str, start: Any = None
    ) -> None:
        self.kind: Literal["linen", "nnx", "jax"] = kind
        self._shown = shown
        self._model = _model(model, kind, shown, start)
        self._prepared = False
        self._ready_for: dict[SideSettings, tuple[Passes, Session]] = {}
        self._traced: dict[SideSettings, Any] = {}

    def facts(self, settings: SideSettings) -> RunFacts:
        """See `Runner`."""
        session = Session(settings)
        return RunFacts(
            self.kind,
            self._shown,
            device_name(session.device),
            settings.dtype,
            # A plain CPU has one precision; the emulated precisions are the TPU's.
            settings.precision if session.emulated or session.device.platform != "cpu" else "",
            session.emulated is not None,
            _versions(),
            self._model.notes,
            self._model.mode,
        )

    @property
    def lies_as_torch(self) -> bool:
        """See `Runner`."""
        return self._model.lies_as_torch

    @property
    def model(self) -> JaxModel:
        """Model of this side."""
        return self._model

    def arguments(self) -> tuple[tuple[str, bool], ...]:
        """See `Runner`."""
        return self.call.names()

    def suggest_inputs(self, count: int, seed: int, folder: Path) -> InputSet:
        """See `Runner`: a Flax model does not describe its inputs."""
        del count, seed, folder
        names = [name for name, _ in self.arguments()] or ["x"]
        raise InputsError(
            f"{self._shown}: input shapes are unknown",
            f"pass them: --inputs '{names[0]}=float32[2,16]'",
        )

    def prepare(self, settings: SideSettings, inputs: InputSet, *, drawn: bool = True) -> None:
        """See `Runner`."""
        if self._prepared:
            return
        plain = SideSettings(device=settings.device, transposed=settings.transposed)
        session = Session(plain)
        layout = settings.transposed
        with session.active(), in_user_code(self._shown, inputs=inputs[0], transposed=layout):
            bound = self.call.bind(session.inputs(inputs[0]))
            if drawn or not self._model.make_room(bound):
                self._model.initialize(bound, settings.seed, session.once)
        self._prepared = True

    def save_weights(self, file: Path) -> None:
        """See `Runner`."""
        if self._model.weights is None:
            raise ParityError(
                f"{self._shown}: has no weights yet", "give it weights, or inputs to be made from"
            )
        write_weights(self._model.weights, file, "nnx" if self.kind == "nnx" else "linen")

    def load_weights(self, file: Path) -> None:
        """See `Runner`."""
        self._model.take(read_weights(file))

    def capture(
        self,
        settings: SideSettings,
        inputs: InputSet,
        writer: DumpWriter,
        *,
        layers: bool = True,
        forced: Forced | None = None,
        numbers: Sequence[int] | None = None,
    ) -> float:
        """See `Runner`. With `forced` there is no plain pass: the dump has no outputs, and 0.0 is returned.

        If `settings.batch` splits an input, the calls of its parts are numbered through.
        """
        self.prepare(settings, inputs)
        passes, session = self._ready(settings)
        of = passes, self._model, session, inputs, writer
        return capture(*of, layers=layers, forced=forced, numbers=numbers)

    @property
    def weights(self) -> Mapping[str, Any]:
        """Weights by `/`-joined path, in numpy; none before `prepare`."""
        return self._model.weights or {}

    def computed(self, settings: SideSettings, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """Arrays that are not trained, by name, with the values that the model itself gives them."""
        plain = SideSettings(device=settings.device, transposed=settings.transposed)
        session = Session(plain)
        with session.active(), in_user_code(self._shown):
            return self._model.computed(self.call.bind(session.inputs(arrays)))

    def follow(
        self,
        settings: SideSettings,
        arrays: Mapping[str, Any],
        weights: Mapping[str, Any],
        watcher: Watcher,
    ) -> Outputs:
        """Run one pass with other weights and a watcher of each layer's call; return the outputs."""
        passes, session = self._ready(settings)
        with session.active():
            bound = passes.bound(arrays)
            placed = {name: session.plain(array) for name, array in weights.items()}
            return watched(self._model, session, watcher, placed, bound)

    def evaluated(
        self,
        settings: SideSettings,
        arrays: Mapping[str, Any],
        evaluation: Evaluation,
        weights: Mapping[str, Any],
    ) -> Outputs:
        """Run the equations of the traced pass by an evaluation; return the outputs."""
        import jax

        passes, session = self._ready(settings)
        with session.active(), in_user_code(self._shown):
            bound = passes.bound(arrays)
            arguments = passes.weights(), bound.args, dict(bound.kwargs)
            if settings not in self._traced:
                self._traced[settings] = jax.make_jaxpr(passes.function(bound), return_shape=True)(
                    *arguments
                )
            closed, shapes = self._traced[settings]
            args = [weights[name] for name in sorted(arguments[0])] + jax.tree.leaves(arguments[1:])
            results = evaluation.run(closed.jaxpr, closed.consts, args)
            outputs = jax.tree.unflatten(jax.tree.structure(shapes), results)
            return {path: np.asarray(evaluation.shown(output)) for path, output in outputs.items()}

    def in_float32(self, settings: SideSettings, arrays: Mapping[str, Any]) -> bool:
        """Whether the model computes in float32 though all its inputs are float64."""
        from migrate.parity.sides.jax.gradients import makes_float32

        passes, session = self._ready(settings)
        with session.active(), in_user_code(self._shown):
            return makes_float32(passes, arrays)

    def idle(
        self, settings: SideSettings, inputs: InputSet, names: Sequence[str]
    ) -> tuple[str, ...]:
        """Weights without influence on the outputs for the first input."""
        from migrate.parity.sides.jax.gradients import without_influence

        self.prepare(settings, inputs)
        passes, session = self._ready(settings)
        with session.active(), in_user_code(self._shown):
            return without_influence(passes, inputs[0], names)

    def gradients(
        self, settings: SideSettings, inputs: InputSet, cotangents: Path, into: Path
    ) -> None:
        """See `Runner`."""
        from migrate.parity.sides.jax.gradients import gradients

        self.prepare(settings, inputs)
        passes, session = self._ready(settings)
        gradients(passes, self._model, session, inputs, cotangents, into)

    def train(self, settings: SideSettings, inputs: InputSet, training: Training) -> list[float]:
        """See `Runner`."""
        from migrate.parity.sides.jax.training import train

        self.prepare(settings, inputs)
        passes, session = self._ready(settings)
        return train(passes, self._model, session, inputs, training)

    def in_training(
        self,
        settings: SideSettings,
        inputs: InputSet,
        cotangents: Path,
        into: Path,
        batches: int,
        drawn: tuple[HostDrawn, ...] = (),
    ) -> TrainingDraws:
        """See `Runner`: of Flax models only."""
        from migrate.parity.sides.jax.modes import in_training

        if self.kind == "jax":
            raise ParityError(
                f"{self._shown}: not a Flax model", "compare training modes of Flax models only"
            )
        self.prepare(settings, inputs)
        passes, session = self._ready(settings)
        return in_training(passes, self._model, session, inputs, cotangents, into, batches, drawn)

    def generate(
        self, settings: SideSettings, inputs: InputSet, tokens: int, output: str
    ) -> Generated:
        """See `Runner`."""
        from migrate.parity.sides.jax.generation import generate

        self.prepare(settings, inputs)
        passes, session = self._ready(settings)
        return generate(passes, self._model, session, inputs, tokens, output)

    def measure_top_k(self, settings: SideSettings, inputs: InputSet) -> Section:
        """Measure approximate top-k operations on this device; a CPU run does not show their error."""
        from migrate.parity.tasks.topk import in_function, topk_section

        self.prepare(settings, inputs)
        passes, session = self._ready(settings)
        with session.active(), in_user_code(self._shown):
            bound = passes.bound(inputs[0])
            args = session.weights(self._model), bound.args, dict(bound.kwargs)
            return topk_section(in_function(passes.function(bound), *args))

    def program(self, settings: SideSettings, inputs: InputSet) -> CompilerProgram:
        """Lower the model on the first input, as a compiler receives it."""
        self.prepare(settings, inputs)
        passes, session = self._ready(settings)
        with session.active(), in_user_code(self._shown):
            bound = passes.bound(inputs[0])
            args = session.weights(self._model), bound.args, dict(bound.kwargs)
            return program_of_jax(passes.function(bound), *args, name=self._shown)

    @property
    def call(self) -> CallParameters:
        """Parameters of its call, and their binding to inputs."""
        return CallParameters(self._model.parameters(), self._shown)

    def _ready(self, settings: SideSettings) -> tuple[Passes, Session]:
        self._model.seed = settings.seed
        if settings not in self._ready_for:
            session = Session(settings)
            passes = Passes(self._model, self.call, session)
            self._ready_for[settings] = passes, session
        return self._ready_for[settings]


def _model(model: Any, kind: str, shown: str, start: Any) -> JaxModel:
    if kind == "linen" and hasattr(model, "params_shape_tree"):
        from migrate.parity.sides.jax.pretrained import PretrainedModel

        return PretrainedModel(model, shown)
    if kind == "linen":
        from migrate.parity.sides.jax.linen import LinenModel

        return LinenModel(model, shown)
    if kind == "nnx":
        from migrate.parity.sides.jax.nnx import NnxModel

        return NnxModel(model, shown)
    try:
        return FunctionModel(model, shown, start)
    except (TypeError, ValueError) as error:
        raise ParityError(f"{shown}: has no signature ({error})", "name a function") from None


def _versions() -> dict[str, str]:
    from importlib import metadata

    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
