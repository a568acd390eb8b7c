"""A linen model in training mode: what it gives at rates of 0, its statistics, and what it draws."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.requests import Draw, HostDrawn, TrainingDraws
from migrate.parity.inputs.set import InputSet
from migrate.parity.sides.jax.arguments import Bound
from migrate.parity.sides.jax.capture.values import tensors
from migrate.parity.sides.jax.gradients import SINGLE, arranged, differentiable, split
from migrate.parity.sides.jax.linen import LinenModel
from migrate.parity.sides.jax.passes import Passes, in_user_code
from migrate.parity.sides.jax.session import Session

# How many numbers of each mask are compared with others.
_BITS = 1 << 14
_KEYS = 2


def in_training(
    passes: Passes,
    model: LinenModel,
    session: Session,
    inputs: InputSet,
    cotangents: Path,
    into: Path,
    batches: int,
    drawn: Sequence[HostDrawn] = (),
) -> TrainingDraws:
    """See `Runner.in_training`. The forward and the backward pass are compiled once for all of it."""
    from safetensors.numpy import load_file, save_file

    into.mkdir(parents=True, exist_ok=True)
    of_host = {one.name: one.value for one in drawn}
    with session.active():
        weights = session.weights(model)
        compiled: dict[Any, Any] = {}

        def run(number: int, kept: Mapping[str, Any]) -> Any:
            bound = passes.bound({**inputs[number], **of_host})
            given = load_file(cotangents / f"{number:03d}.safetensors")
            floating, others = differentiable(bound)
            key = tuple(bound.kwargs), tuple(given)
            if key not in compiled:
                compiled[key] = session.compiled(_step(model, bound))
            with in_user_code(model.shown):
                made = compiled[key]((trained, floating), kept, others, given)
            return bound, made

        trained, kept = split(model, weights)
        for number in range(inputs.count):
            bound, ((_, (outputs, _)), gradients) = run(number, kept)
            found = arranged(bound, *gradients)
            found |= {f"outputs/{path}": _stored(one) for path, one in outputs.items()}
            save_file(found, into / f"{number:03d}.safetensors")
        statistics = {name for name in kept if name.startswith("batch_stats/")}
        now = dict(kept)
        for number in range(batches if statistics else 0):
            _, ((_, (_, changed)), _) = run(number % inputs.count, now)
            now |= {name: one for name, one in changed.items() if name in statistics}
        after = {f"weights/{name}": _stored(now[name]) for name in sorted(statistics)}
        save_file(after, into / "statistics.safetensors")
        draws = _draws(model, session, weights, passes.bound({**inputs[0], **of_host}))
    return TrainingDraws(draws)


def _step(model: LinenModel, bound: Bound) -> Any:
    import jax
    import jax.numpy as jnp

    def scalar(variables: Any, kept: Any, others: Any, cotangents: Any) -> Any:
        trained, floating = variables
        together = floating | others
        args = tuple(together[str(number)] for number in range(len(bound.args)))
        kwargs = {name: together[name] for name in bound.kwargs}
        here = Bound(args, kwargs, bound.modes, bound.renamed)
        made, changed = model.trained(trained | kept, here)
        outputs = {path or SINGLE: array for path, array in tensors(made).items()}
        total = 0.0
        for path, cotangent in cotangents.items():
            if path not in outputs:
                continue  # of evaluation alone
            if outputs[path].shape != cotangent.shape:
                raise ParityError(
                    f"{model.shown}: output {path} has another shape in training",
                    "compare the outputs",
                )
            total += jnp.sum(outputs[path] * cotangent.astype(outputs[path].dtype))
        return total, (outputs, changed)

    return jax.value_and_grad(scalar, has_aux=True)


def _stored(array: Any) -> np.ndarray[Any, Any]:
    made = np.asarray(array)
    wide = made if made.dtype in (np.float64, np.float32) else made.astype(np.float32)
    return np.ascontiguousarray(wide).reshape(made.shape)


def _draws(
    model: LinenModel, session: Session, weights: Mapping[str, Any], bound: Bound
) -> tuple[Draw, ...]:
    """What the dropouts draw: nothing of the model but its masks is computed."""
    import jax

    plans: list[tuple[float, int]] = []

    def masks(key: Any, weights: Any, args: Any, kwargs: Any) -> Any:
        with _seen() as seen:
            model.trained(weights, Bound(args, kwargs, bound.modes, bound.renamed), key)
        plans[:] = [(rate, mask.size) for rate, mask in seen.masks]
        of = [(mask.mean(), mask.reshape(-1)[:_BITS]) for _, mask in seen.masks]
        return of, seen.scales

    run = session.compiled(masks)
    given = weights, bound.args, dict(bound.kwargs)
    with in_user_code(model.shown):
        found = [run(jax.random.key(seed), *given) for seed in range(_KEYS)]
    (first, scales), (second, _) = found
    bits = [np.asarray(one, np.float64) for _, one in first]
    made = []
    for at, (rate, count) in enumerate(plans):
        others = [np.asarray(second[at][1], np.float64)]
        others += [one for one in bits[at + 1 :] if one.size == bits[at].size][:1]
        alike = max(abs(_correlation(bits[at], one)) for one in others)
        scale = next((float(s) for r, s in scales if r == rate), 0.0)
        made.append(Draw(rate, count, float(first[at][0]), scale, alike))
    return tuple(made)


def _correlation(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """The correlation of two masks in standard deviations; 0 where one is constant."""
    deviations = one - one.mean(), other - other.mean()
    norms = [float(np.linalg.norm(each)) for each in deviations]
    if not all(norms):
        return 0.0
    return float(deviations[0] @ deviations[1]) / (norms[0] * norms[1]) * float(one.size) ** 0.5


class _Seen:
    """Masks, each with its rate, and what dropouts multiply kept elements with."""

    def __init__(self) -> None:
        self.masks: list[tuple[float, Any]] = []
        self.scales: list[tuple[float, Any]] = []


@contextlib.contextmanager
def _seen() -> Iterator[_Seen]:
    """Note the masks that `jax.random.bernoulli` draws."""
    import jax
    import jax.numpy as jnp
    from flax import linen

    seen, bernoulli = _Seen(), jax.random.bernoulli

    def noted(key: Any, p: Any = 0.5, shape: Any = None, **more: Any) -> Any:
        mask = bernoulli(key, p, shape, **more)
        seen.masks.append((1 - float(p), mask))
        return mask

    def scaled(next_: Any, args: Any, kwargs: Any, context: Any) -> Any:
        dropout = isinstance(context.module, linen.Dropout) and context.method_name == "__call__"
        if not dropout or not 0 < context.module.rate < 1:
            return next_(*args, **kwargs)
        made = next_(jnp.ones_like(args[0]), **kwargs)
        seen.scales.append((1 - (1 - context.module.rate), made.max()))
        return args[0] * made

    jax.random.bernoulli = noted
    try:
        with linen.intercept_methods(scaled):
            yield seen
    finally:
        jax.random.bernoulli = bernoulli
