"""Flax model in training mode: outputs at dropout rates of 0, statistics, and draws."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.requests import Draw, HostDrawn, TrainingDraws
from migrate.parity.inputs.set import InputSet
from migrate.parity.sides.jax.arguments import BoundInputs
from migrate.parity.sides.jax.capture.values import tensors
from migrate.parity.sides.jax.gradients import SINGLE, arranged, differentiable, split
from migrate.parity.sides.jax.model import JaxModel
from migrate.parity.sides.jax.passes import Passes, in_user_code
from migrate.parity.sides.jax.session import Session

# Number of values of each mask to compare with other masks.
_BITS = 1 << 14
_KEYS = 2


def in_training(
    passes: Passes,
    model: JaxModel,
    session: Session,
    inputs: InputSet,
    cotangents: Path,
    into: Path,
    batches: int,
    drawn: Sequence[HostDrawn] = (),
) -> TrainingDraws:
    """See `Runner.in_training`. The forward and the backward pass are compiled once."""
    from safetensors.numpy import load_file, save_file

    into.mkdir(parents=True, exist_ok=True)
    of_host = {tensor.name: tensor.value for tensor in drawn}
    with session.active():
        weights = session.weights(model)
        compiled: dict[Any, Any] = {}

        def run(number: int, kept: Mapping[str, Any]) -> Any:
            bound = passes.bound({**inputs[number], **of_host})
            cotangent_arrays = load_file(cotangents / f"{number:03d}.safetensors")
            floating, others = differentiable(bound)
            key = tuple(bound.kwargs), tuple(cotangent_arrays)
            if key not in compiled:
                compiled[key] = session.compiled(_step(model, bound))
            with in_user_code(model.shown):
                results = compiled[key]((trained, floating), kept, others, cotangent_arrays)
            return bound, results

        trained, kept = split(model, weights)
        for number in range(inputs.count):
            bound, ((_, (outputs, _)), gradients) = run(number, kept)
            tensors_by_name = arranged(bound, *gradients)
            tensors_by_name |= {
                f"outputs/{path}": _stored(output) for path, output in outputs.items()
            }
            save_file(tensors_by_name, into / f"{number:03d}.safetensors")
        statistics = {name for name in kept if model.is_statistic(name)}
        now = dict(kept)
        for number in range(batches if statistics else 0):
            _, ((_, (_, changed)), _) = run(number % inputs.count, now)
            now |= {name: statistic for name, statistic in changed.items() if name in statistics}
        after = {f"weights/{name}": _stored(now[name]) for name in sorted(statistics)}
        save_file(after, into / "statistics.safetensors")
        draws = _draws(model, session, weights, passes.bound({**inputs[0], **of_host}))
    return TrainingDraws(draws)


def _step(model: JaxModel, bound: BoundInputs) -> Any:
    import jax
    import jax.numpy as jnp

    def scalar(variables: Any, kept: Any, others: Any, cotangents: Any) -> Any:
        trained, floating = variables
        together = floating | others
        args = tuple(together[str(number)] for number in range(len(bound.args)))
        kwargs = {name: together[name] for name in bound.kwargs}
        here = BoundInputs(args, kwargs, bound.modes, bound.renamed)
        results, changed = model.trained(trained | kept, here)
        outputs = {path or SINGLE: array for path, array in tensors(results).items()}
        total = 0.0
        for path, cotangent in cotangents.items():
            if path not in outputs:
                continue  # an output of evaluation mode only
            if outputs[path].shape != cotangent.shape:
                raise ParityError(
                    f"{model.shown}: output {path} has another shape in training",
                    "compare the outputs",
                )
            total += jnp.sum(outputs[path] * cotangent.astype(outputs[path].dtype))
        return total, (outputs, changed)

    return jax.value_and_grad(scalar, has_aux=True)


def _stored(array: Any) -> np.ndarray[Any, Any]:
    stored = np.asarray(array)
    wide = stored if stored.dtype in (np.float64, np.float32) else stored.astype(np.float32)
    return np.ascontiguousarray(wide).reshape(stored.shape)


def _draws(
    model: JaxModel, session: Session, weights: Mapping[str, Any], bound: BoundInputs
) -> tuple[Draw, ...]:
    """Draws of the dropouts: of the model only its masks are computed."""
    import jax

    plans: list[tuple[float, int]] = []

    def masks(key: Any, weights: Any, args: Any, kwargs: Any) -> Any:
        with _seen() as seen:
            model.trained(weights, BoundInputs(args, kwargs, bound.modes, bound.renamed), key)
        plans[:] = [(rate, mask.size) for rate, mask in seen.masks]
        of = [(mask.mean(), mask.reshape(-1)[:_BITS]) for _, mask in seen.masks]
        return of, seen.scales

    run = session.compiled(masks)
    arguments = weights, bound.args, dict(bound.kwargs)
    with in_user_code(model.shown):
        drawn_masks = [run(jax.random.key(seed), *arguments) for seed in range(_KEYS)]
    (first, scales), (second, _) = drawn_masks
    bits = [np.asarray(mask, np.float64) for _, mask in first]
    draws = []
    for at, (rate, count) in enumerate(plans):
        others = [np.asarray(second[at][1], np.float64)]
        others += [mask for mask in bits[at + 1 :] if mask.size == bits[at].size][:1]
        alike = max(abs(_correlation(bits[at], other)) for other in others)
        scale = next((float(s) for r, s in scales if r == rate), 0.0)
        draws.append(Draw(rate, count, float(first[at][0]), scale, alike))
    return tuple(draws)


def _correlation(mask: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """Correlation of two masks in standard deviations; 0 if one is constant."""
    deviations = mask - mask.mean(), other - other.mean()
    norms = [float(np.linalg.norm(each)) for each in deviations]
    if not all(norms):
        return 0.0
    return float(deviations[0] @ deviations[1]) / (norms[0] * norms[1]) * float(mask.size) ** 0.5


class _Seen:
    """Masks with their rates, and the factors of retained elements in dropouts."""

    def __init__(self) -> None:
        self.masks: list[tuple[float, Any]] = []
        self.scales: list[tuple[float, Any]] = []


@contextlib.contextmanager
def _seen() -> Iterator[_Seen]:
    """Record the masks that `jax.random.bernoulli` draws."""
    import jax
    import jax.numpy as jnp
    from flax import linen, nnx

    seen, bernoulli = _Seen(), jax.random.bernoulli

    def noted(key: Any, p: Any = 0.5, shape: Any = None, **more: Any) -> Any:
        mask = bernoulli(key, p, shape, **more)
        if not np.ndim(p):  # a dropout has one rate
            seen.masks.append((1 - float(p), mask))
        return mask

    def scaled(next_: Any, args: Any, kwargs: Any, context: Any) -> Any:
        dropout = isinstance(context.module, linen.Dropout) and context.method_name == "__call__"
        if not dropout or not 0 < context.module.rate < 1:
            return next_(*args, **kwargs)
        factors = next_(jnp.ones_like(args[0]), **kwargs)
        seen.scales.append((1 - (1 - context.module.rate), factors.max()))
        return args[0] * factors

    def scaled_nnx(module: Any, inputs: Any, **options: Any) -> Any:
        if not 0 < module.rate < 1 or module.deterministic:
            return plain(module, inputs, **options)
        factors = plain(module, jnp.ones_like(inputs), **options)
        seen.scales.append((1 - (1 - module.rate), factors.max()))
        return inputs * factors

    jax.random.bernoulli = noted
    plain = nnx.Dropout.__call__
    setattr(nnx.Dropout, "__call__", scaled_nnx)  # noqa: B010
    try:
        with linen.intercept_methods(scaled):
            yield seen
    finally:
        jax.random.bernoulli = bernoulli
        setattr(nnx.Dropout, "__call__", plain)  # noqa: B010
