"""Optax transformation of each torch optimizer class, from its first step on.

`kinds` recognizes the optimizer of a state dict, in the middle of a training. This table is for a class
that is known by name. Where optax computes another update, the rule is in `torch_rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from converters.errors import OptimizerError
from converters.optimizer.calls import OptaxCall, call, chained
from converters.optimizer.kinds import LION, SGD, Group, kind_of_adam, number

RULES = "rules"  # package of the calls that are in torch_rules


def call_of_class(name: str, group: Group, rate: Any) -> OptaxCall:
    """Return the transformation that updates a group as the class does.

    Args:
        name: name of a class of torch.optim, or Lion, without its module: "AdamW"; or
            "transformers.Adafactor". Whether it is that class and no other one of its name is the caller's
            to know.
        group: options of the group.
        rate: learning rate: a number, or `Code` of a schedule.

    Raises:
        OptimizerError: the class has no counterpart; the message says why.
    """
    require_class(name)
    return _CLASSES[name]({**group, "lr": rate})


def require_class(name: str) -> None:
    """Require a class that has a counterpart.

    Raises:
        OptimizerError: it has none.
    """
    if name not in _CLASSES:
        raise OptimizerError(
            f"{name} has no counterpart in optax that was compared with it",
            f"use one of {', '.join(sorted(_CLASSES))}",
        )


def _sgd(group: Group) -> OptaxCall:
    if number(group["momentum"]) and number(group.get("dampening", 0.0)):
        return _chain(
            group,
            call(f"{RULES}.damped_trace", number(group["momentum"]), number(group["dampening"])),
        )
    return SGD.call(group, 1)


def _adam(group: Group, *, decoupled: bool) -> OptaxCall:
    if not group.get("amsgrad"):
        return kind_of_adam(decoupled=decoupled).call(group, 1)
    b1, b2 = map(number, group["betas"])
    rule = call(f"{RULES}.scale_by_amsgrad", b1, b2, number(group["eps"]))
    return _chain(group, rule, decoupled=decoupled)


def _adagrad(group: Group) -> OptaxCall:
    options = {
        key: number(group[key])
        for key in ("initial_accumulator_value", "lr_decay")
        if number(group.get(key, 0.0))
    }
    return _chain(group, call(f"{RULES}.scale_by_adagrad", number(group["eps"]), **options))


def _rmsprop(group: Group) -> OptaxCall:
    # optax.rmsprop scales by the learning rate before the momentum, torch after it.
    name = "optax.scale_by_stddev" if group.get("centered") else "optax.scale_by_rms"
    rule = call(name, decay=number(group["alpha"]), eps=number(group["eps"]), eps_in_sqrt=False)
    momentum = number(group.get("momentum", 0.0))
    trace = call("optax.trace", decay=momentum) if momentum else None
    return _chain(group, rule, trace)


def _nadam(group: Group) -> OptaxCall:
    b1, b2 = map(number, group["betas"])
    rule = call(
        f"{RULES}.scale_by_nadam", b1, b2, number(group["eps"]), number(group["momentum_decay"])
    )
    return _chain(group, rule, decoupled=bool(group.get("decoupled_weight_decay")))


def _radam(group: Group) -> OptaxCall:
    b1, b2 = map(number, group["betas"])
    rule = call(f"{RULES}.scale_by_radam", b1, b2, number(group["eps"]))
    return _chain(group, rule, decoupled=bool(group.get("decoupled_weight_decay")))


def _adamax(group: Group) -> OptaxCall:
    b1, b2 = map(number, group["betas"])
    return _chain(group, call("optax.scale_by_adamax", b1=b1, b2=b2, eps=number(group["eps"])))


def _adadelta(group: Group) -> OptaxCall:
    rule = call("optax.scale_by_adadelta", rho=number(group["rho"]), eps=number(group["eps"]))
    return _chain(group, rule)


def _adafactor_of_transformers(group: Group) -> OptaxCall:
    """Adafactor of transformers, for arrays that are a tensor of at most two axes each, or its transpose."""
    if group.get("relative_step"):
        raise OptimizerError(
            "Adafactor with relative_step has a rate that depends on its own count of steps",
            "pass lr=… and relative_step=False",
        )
    decay, beta1 = number(group.get("weight_decay", 0.0)), group.get("beta1")
    if decay and beta1 is not None:
        raise OptimizerError(
            "Adafactor with beta1 and weight_decay has no counterpart in optax",
            "leave one of the two out",
        )
    floor, smallest = map(number, group["eps"])
    rule = call(
        "optax.scale_by_factored_rms",
        decay_rate=-number(group["decay_rate"]),
        min_dim_size_to_factor=0,
        epsilon=floor,
    )
    scale = "optax.scale_by_param_block_rms"
    return chained(
        rule,
        call("optax.clip_by_block_rms", number(group["clip_threshold"])),
        call("optax.add_decayed_weights", decay) if decay else None,
        call(scale, smallest) if group.get("scale_parameter") else None,
        call("optax.scale_by_learning_rate", number(group["lr"])),
        call("optax.ema", number(beta1), debias=False) if beta1 is not None else None,
    )


def _chain(group: Group, *rules: OptaxCall | None, decoupled: bool = False) -> OptaxCall:
    """Chain the sign, coupled decay, the rule, decoupled decay and the learning rate."""
    decay = number(group.get("weight_decay", 0.0))
    decayed = call("optax.add_decayed_weights", decay) if decay else None
    return chained(
        call("optax.scale", -1.0) if group.get("maximize") else None,
        None if decoupled else decayed,
        *rules,
        decayed if decoupled else None,
        call("optax.scale_by_learning_rate", number(group["lr"])),
    )


_CLASSES: Mapping[str, Callable[[Group], OptaxCall]] = {
    "SGD": _sgd,
    "Adam": lambda group: _adam(group, decoupled=bool(group.get("decoupled_weight_decay"))),
    "AdamW": lambda group: _adam(group, decoupled=True),
    "Adagrad": _adagrad,
    "RMSprop": _rmsprop,
    "NAdam": _nadam,
    "RAdam": _radam,
    "Adamax": _adamax,
    "Adadelta": _adadelta,
    "transformers.Adafactor": _adafactor_of_transformers,
    "Lion": lambda group: LION.call(group, 1),
}
