"""Training steps of a JAX side, with the optimizers that optax and torch share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from migrate.parity.ground.errors import ParityError, TargetError
from migrate.parity.ground.requests import Training
from migrate.parity.inputs.set import InputSet
from migrate.parity.sides.jax.arguments import BoundInputs
from migrate.parity.sides.jax.capture.values import tensors
from migrate.parity.sides.jax.gradients import split
from migrate.parity.sides.jax.model import JaxModel
from migrate.parity.sides.jax.passes import Passes, in_user_code
from migrate.parity.sides.jax.session import Session

_MOMENTUM, _DECAY, _EPS = 0.9, 0.01, 1e-8


def train(
    passes: Passes, model: JaxModel, session: Session, inputs: InputSet, training: Training
) -> list[float]:
    """See `Runner.train`: in training mode without dropout; running statistics are updated."""
    from safetensors.numpy import load_file

    optimizer = optimizer_of(training.optimizer, training.learning_rate)
    losses = []
    with session.active():
        loss = loss_of(training.loss)
        trained, kept = split(model, session.weights(model))
        state = optimizer.init(trained)
        step: Any = None
        for number in training.order[: training.steps]:
            bound = passes.bound(inputs[number])
            wanted = load_file(training.targets / f"{number:03d}.safetensors")
            wanted = {name: session.plain(array) for name, array in wanted.items()}
            if step is None:
                step = session.compiled(
                    training_step(model, bound, optimizer, loss, training.output)
                )
            with in_user_code(model.shown):
                trained, kept, state, value = step(
                    trained, kept, state, bound.args, dict(bound.kwargs), wanted
                )
            losses.append(float(value))
    return losses


def training_step(
    model: JaxModel, bound: BoundInputs, optimizer: Any, loss: Callable[..., Any], output: str
) -> Callable[..., Any]:
    """Return a step as a function of (trained weights, other weights, optimizer state, args, kwargs,
    wanted).

    The step returns the first three after the update, and the loss.
    """
    import jax
    import optax

    def step(trained: Any, kept: Any, state: Any, args: Any, kwargs: Any, wanted: Any) -> Any:
        def scalar(trained: Any) -> Any:
            here = BoundInputs(args, kwargs, bound.modes, bound.renamed)
            results, changed = model.apply(trained | kept, here, train=True)
            outputs = tensors(results)
            if output not in outputs:
                raise ParityError(
                    f"{model.shown}: has no output {output or '(a single tensor)'}, but "
                    f"{', '.join(outputs)}",
                    "name the output of the loss",
                )
            return loss(outputs[output], wanted["target"], wanted.get("counted")), changed

        (value, changed), gradients = jax.value_and_grad(scalar, has_aux=True)(trained)
        updates, state = optimizer.update(gradients, state, trained)
        statistics = {name: changed.get(name, old).astype(old.dtype) for name, old in kept.items()}
        return optax.apply_updates(trained, updates), statistics, state, value

    return step


def optimizer_of(name: str, rate: float) -> Any:
    """Return the optax optimizer for a name that torch has too.

    Raises:
        ParityError: there is no such optimizer.
    """
    import optax

    makers: dict[str, Callable[[], Any]] = {
        "sgd": lambda: optax.sgd(rate),
        "momentum": lambda: optax.sgd(rate, momentum=_MOMENTUM),
        "adam": lambda: optax.adam(rate, eps=_EPS),
        "adamw": lambda: optax.adamw(rate, eps=_EPS, weight_decay=_DECAY),
    }
    if name not in makers:
        raise ParityError(f"{name}: no such optimizer", f"one of {', '.join(makers)}")
    return makers[name]()


def loss_of(name: str) -> Callable[[Any, Any, Any], Any]:
    """Return the loss for a name, or for `file.py:function`: a function of (output, target, counted)."""
    import jax
    import jax.numpy as jnp

    def mean(values: Any, counted: Any) -> Any:
        if counted is None:
            return jnp.mean(values)
        wide = jnp.promote_types(values.dtype, jnp.float32)  # wide enough for the number of values
        total = jnp.sum(values, where=counted, dtype=wide)
        return (total / jnp.maximum(counted.sum(), 1)).astype(values.dtype)

    def mse(output: Any, target: Any, counted: Any) -> Any:
        if counted is not None:  # before anything else: values outside may be infinite
            output = jnp.where(counted, output, target)
        return mean((output - target) ** 2, counted)

    def cross_entropy(output: Any, target: Any, counted: Any) -> Any:
        if counted is not None:
            output = jnp.where(counted[..., None], output, 0)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(output), target[..., None], axis=-1)
        return -mean(chosen[..., 0], counted)

    known: dict[str, Callable[..., Any]] = {"mse": mse, "cross_entropy": cross_entropy}
    if name in known:
        return known[name]
    own = users_function(name, "loss", "mse, cross_entropy or file.py:function")
    return lambda output, target, counted: own(output, target)


def users_function(spec: str, what: str, remedy: str) -> Callable[..., Any]:
    """Return the function named by `file.py:function`; `what` and `remedy` are for error messages.

    Raises:
        TargetError: there is no such file or function.
    """
    from converters.errors import ConversionError
    from converters.model import imported, named_object

    location, _, name = spec.rpartition(":")
    if not location:
        raise TargetError(f"{spec}: is no {what}", remedy)
    try:
        with imported(spec, location) as module:
            function: Callable[..., Any] = named_object(module, location, name)
            return function
    except ConversionError as error:
        raise TargetError(error.what, error.remedy) from error
