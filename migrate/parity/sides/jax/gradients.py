"""Gradients of a JAX side's weights and inputs, for given cotangents of its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from migrate.parity.ground.errors import ParityError
from migrate.parity.inputs.set import InputSet
from migrate.parity.sides.jax.arguments import BoundInputs
from migrate.parity.sides.jax.capture.values import is_floating, tensors
from migrate.parity.sides.jax.model import JaxModel
from migrate.parity.sides.jax.passes import Passes, in_user_code
from migrate.parity.sides.jax.session import Session

# Key of an output that is a single tensor, whose path is empty.
SINGLE = "output"
# Rounding that remains of a weight without effect, relative to the largest effect of a weight (float64).
_NOTHING = 1e-13


def gradients(
    passes: Passes,
    model: JaxModel,
    session: Session,
    inputs: InputSet,
    cotangents: Path,
    into: Path,
) -> None:
    """See `Runner.gradients`."""
    from safetensors.numpy import load_file, save_file

    into.mkdir(parents=True, exist_ok=True)
    with session.active():
        trained, kept = split(model, session.weights(model))
        compiled: dict[Any, Any] = {}
        for number in range(inputs.count):
            bound = passes.bound(inputs[number])
            name = f"{number:03d}.safetensors"
            cotangent_arrays = load_file(cotangents / name)
            floating, others = differentiable(bound)
            modes = (tuple(bound.kwargs), tuple(cotangent_arrays))
            if modes not in compiled:
                compiled[modes] = session.compiled(_function(model, bound))
            with in_user_code(model.shown):
                gradient_arrays = compiled[modes](
                    (trained, floating),
                    kept,
                    others,
                    {key: _array(array) for key, array in cotangent_arrays.items()},
                )
            save_file(arranged(bound, *gradient_arrays), into / name)


def split(model: JaxModel, weights: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the weights into those that are trained, and the others."""
    trained = {
        name: array
        for name, array in weights.items()
        if model.is_parameter(name) and is_floating(array.dtype)
    }
    return trained, {name: array for name, array in weights.items() if name not in trained}


def _function(model: JaxModel, bound: BoundInputs) -> Any:
    import jax
    import jax.numpy as jnp

    def scalar(
        variables: tuple[dict[str, Any], dict[str, Any]],
        kept: dict[str, Any],
        others: dict[str, Any],
        cotangents: dict[str, Any],
    ) -> Any:
        trained, floating = variables
        results, _ = model.apply(trained | kept, _joined(bound, floating | others))
        outputs = {path or SINGLE: array for path, array in tensors(results).items()}
        total = 0.0
        for path, cotangent in cotangents.items():
            if path not in outputs or outputs[path].shape != cotangent.shape:
                shape = list(outputs[path].shape) if path in outputs else "missing"
                raise ParityError(
                    f"{model.shown}: output {path} is {shape}, its cotangent {list(cotangent.shape)}",
                    "give one of its shape",
                )
            total += jnp.sum(outputs[path] * cotangent.astype(outputs[path].dtype))
        return total

    return jax.grad(scalar)


def differentiable(bound: BoundInputs) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the inputs into floating inputs and others, by position or parameter."""
    together = {str(number): array for number, array in enumerate(bound.args)} | dict(bound.kwargs)
    floating = {name: array for name, array in together.items() if is_floating(array.dtype)}
    return floating, {name: array for name, array in together.items() if name not in floating}


def _joined(bound: BoundInputs, together: Mapping[str, Any]) -> BoundInputs:
    args = tuple(together[str(number)] for number in range(len(bound.args)))
    kwargs = {name: together[name] for name in bound.kwargs}
    return BoundInputs(args, kwargs, bound.modes, bound.renamed)


def _array(array: np.ndarray[Any, Any]) -> Any:
    import jax.numpy as jnp

    return jnp.asarray(array)


def arranged(
    bound: BoundInputs, weights: Mapping[str, Any], inputs: Mapping[str, Any]
) -> dict[str, np.ndarray[Any, Any]]:
    """Gradients by the names used in files of gradients."""
    gradients_by_name = {f"weights/{name}": gradient for name, gradient in weights.items()}
    gradients_by_name |= {
        f"inputs/{bound.renamed.get(name, name)}": gradient for name, gradient in inputs.items()
    }
    return {name: _stored(np.asarray(gradient)) for name, gradient in gradients_by_name.items()}


def _stored(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    wide = array if array.dtype == np.float64 else array.astype(np.float32)
    return np.ascontiguousarray(wide).reshape(array.shape)


def without_influence(
    passes: Passes, arrays: Mapping[str, np.ndarray[Any, Any]], names: Sequence[str]
) -> tuple[str, ...]:
    """Weights that change no output, as far as the gradients of a random sum of outputs show."""
    import jax
    import jax.numpy as jnp

    weights, bound = passes.weights(), passes.bound(arrays)
    forward = passes.function(bound)
    random = np.random.default_rng(0)

    def total(of: dict[str, Any]) -> Any:
        outputs = forward({**weights, **of}, bound.args, dict(bound.kwargs))
        floating = [output for output in outputs.values() if is_floating(output.dtype)]
        return sum(jnp.sum(output * random.normal(size=output.shape)) for output in floating)

    slopes = jax.jit(jax.grad(total))({name: weights[name] for name in names})
    moved = {
        name: float(np.abs(np.asarray(slope) * np.asarray(weights[name])).max(initial=0.0))
        for name, slope in slopes.items()
    }
    least = _NOTHING * max(moved.values(), default=0.0)
    return tuple(name for name, most in moved.items() if most <= least)


def makes_float32(passes: Passes, arrays: Mapping[str, np.ndarray[Any, Any]]) -> bool:
    """Whether a computation in the model is float32."""
    import jax

    bound = passes.bound(arrays)
    traced = jax.make_jaxpr(passes.function(bound))(
        passes.weights(), bound.args, dict(bound.kwargs)
    )
    return "f32[" in str(traced)
