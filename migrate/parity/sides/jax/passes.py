"""Passes of a JAX side for a dump: outputs of the jitted model, and its layers run one by one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from migrate.parity.dump.reference import Forced
from migrate.parity.dump.writer import DumpWriter
from migrate.parity.ground.errors import ParityError
from migrate.parity.inputs.channels import layout_remedy
from migrate.parity.inputs.set import InputSet
from migrate.parity.sides.frames import raised
from migrate.parity.sides.jax.arguments import BoundInputs, CallParameters
from migrate.parity.sides.jax.capture.eager import eager
from migrate.parity.sides.jax.capture.forced import JaxForcing
from migrate.parity.sides.jax.capture.recorder import LayerRecorder, Watcher
from migrate.parity.sides.jax.capture.values import is_floating, named, tensors
from migrate.parity.sides.jax.model import JaxModel
from migrate.parity.sides.jax.session import Session

# Single operations round differently from fused ones; a difference of more eps than this gets a note.
_ROUNDINGS = 4
_ONE_BY_ONE = "it fails with jax.disable_jit(), which its layers need: compare its outputs alone"
Outputs = dict[str, np.ndarray[Any, Any]]


class Passes:
    """Plain passes of a model with some settings, compiled once for each shape.

    Args:
        model: the model, with weights.
        arguments: parameters of its call.
        session: session with the settings.
    """

    def __init__(self, model: JaxModel, arguments: CallParameters, session: Session) -> None:
        self._model, self._arguments, self._session = model, arguments, session
        self._compiled: dict[Any, Callable[..., Any]] = {}
        self._placed: tuple[Any, dict[str, Any]] | None = None

    def weights(self) -> dict[str, Any]:
        """Weights of the model on the device, converted for the settings."""
        own = self._model.weights
        if self._placed is None or self._placed[0] is not own:
            self._placed = own, self._session.weights(self._model)
        return self._placed[1]

    def bound(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> BoundInputs:
        """Input on the device, bound to the model's parameters."""
        return self._arguments.bind(self._session.inputs(arrays))

    def run(self, weights: Mapping[str, Any], bound: BoundInputs) -> tuple[Any, float]:
        """Return the outputs, and the seconds of the run (without compilation)."""
        import jax

        function, args = self.function(bound), (weights, bound.args, dict(bound.kwargs))
        key = (tuple(bound.kwargs), str(jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), args)))
        transposed = self._session.settings.transposed
        with in_user_code(self._model.shown, inputs=bound.named(), transposed=transposed):
            if key not in self._compiled:
                self._compiled[key] = self._session.compiled(function).lower(*args).compile()
            start = time.perf_counter()
            outputs = jax.block_until_ready(self._compiled[key](*args))
            return outputs, time.perf_counter() - start

    def function(self, bound: BoundInputs) -> Callable[..., Any]:
        """The pass as a function of (weights, args, kwargs) that returns outputs by path."""

        def forward(weights: Any, args: Any, kwargs: Any) -> Any:
            outputs, _ = self._model.apply(
                weights, BoundInputs(args, kwargs, bound.modes, bound.renamed)
            )
            return tensors(outputs)

        return forward

    def outputs(
        self, weights: Mapping[str, Any], arrays: Mapping[str, Any]
    ) -> tuple[Outputs, float]:
        """Return the outputs for an input, by path; `settings.batch` rows at a time, if that is set."""
        parts, seconds = [], 0.0
        for part in self.parts(arrays):
            outputs, took = self.run(weights, self.bound(part))
            parts.append({path: np.asarray(array) for path, array in outputs.items()})
            seconds += took
        return joined(parts), seconds

    def parts(self, arrays: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Split the input into the rows of one pass each."""
        rows = self._session.settings.batch
        if rows is None:
            return [arrays]
        count = max(array.shape[0] if array.ndim else 1 for array in arrays.values())
        return [
            {
                name: array[start : start + rows] if array.ndim and len(array) == count else array
                for name, array in arrays.items()
            }
            for start in range(0, count, rows)
        ]


def capture(
    passes: Passes,
    model: JaxModel,
    session: Session,
    inputs: InputSet,
    writer: DumpWriter,
    *,
    layers: bool,
    forced: Forced | None,
    numbers: Sequence[int] | None,
) -> float:
    """See `Runner.capture`."""
    import jax.numpy as jnp

    seconds, difference = 0.0, 0.0
    feed = None if forced is None else JaxForcing(forced)
    recorder = LayerRecorder(writer, feed, session.settings.dtype)
    with session.active():
        weights = passes.weights()
        for number in range(inputs.count) if numbers is None else numbers:
            arrays = inputs[number]
            outputs: Outputs = {}
            if forced is None:
                outputs, took = passes.outputs(weights, arrays)
                seconds += took
                writer.outputs(number, named(outputs, recorder.recent))
            if not layers and forced is None:
                continue
            recorder.start(number)
            parts = []
            for part in passes.parts(arrays):
                bound = passes.bound(part)
                recorder.renamed = bound.renamed
                parts.append(watched(model, session, recorder, weights, bound))
            difference = max(difference, _difference(outputs, joined(parts)))
    recorder.finish()
    if difference > _ROUNDINGS * float(jnp.finfo(session.settings.dtype).eps):
        writer.note(
            "layers were run one operation at a time; so the outputs differ from the jitted ones by "
            "{size} (relative L2)",
            difference,
        )
    if session.not_emulated:
        writer.note(f"not emulated: {', '.join(sorted(session.not_emulated))}")
    return seconds


def watched(
    model: JaxModel,
    session: Session,
    recorder: Watcher,
    weights: Mapping[str, Any],
    bound: BoundInputs,
) -> Outputs:
    """Run one pass operation by operation, with each layer's call observed; return the outputs."""
    with (
        in_user_code(model.shown, _ONE_BY_ONE),
        eager(session.emulated),
        model.recording(recorder),
    ):
        outputs, _ = model.apply(weights, bound)
        return {path: np.asarray(array) for path, array in tensors(outputs).items()}


def _difference(plain: Outputs, seen: Outputs) -> float:
    """Largest relative L2 difference of the outputs."""
    largest = 0.0
    for path, array in plain.items():
        if not is_floating(array.dtype) or path not in seen or seen[path].shape != array.shape:
            continue
        expected, other = array.astype(np.float64), seen[path].astype(np.float64)
        norm = np.linalg.norm(expected)
        if norm > 0 and np.isfinite(norm):
            largest = max(largest, float(np.linalg.norm(expected - other) / norm))
    return largest


def joined(parts: list[Outputs]) -> Outputs:
    """Join the outputs of the parts of an input."""
    if len(parts) == 1:
        return parts[0]
    return {
        path: np.concatenate([part[path] for part in parts]) if first.ndim else first
        for path, first in parts[0].items()
    }


@contextlib.contextmanager
def in_user_code(
    shown: str,
    remedy: str = "run the model alone on these inputs",
    *,
    inputs: Mapping[str, Any] | None = None,
    transposed: tuple[str, ...] = (),
) -> Any:
    """Turn an error of the user's model into one line with its location.

    With `inputs` the remedy names their layout if the error is about shapes.

    Raises:
        ParityError: instead of the model's error.
    """
    try:
        yield
    except ParityError:
        raise
    except Exception as error:
        place = raised(error.__traceback__)
        what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        layout = layout_remedy(what, inputs or {}, transposed)
        raise ParityError(
            f"{shown}: {what}" + (f" ({place})" if place else ""),
            "; ".join(filter(None, (layout, remedy))),
        ) from error
