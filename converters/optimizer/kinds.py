"""Recognition of the optimizer of a state dict, its hyper-parameters, and the equivalent optax call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from converters.errors import OptimizerError
from converters.optimizer.calls import Code, OptaxCall, call, chained

Choice = Literal["adam", "adamw", "sgd", "lion", "adafactor"]
Group = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """Supported optimizer.

    Attributes:
        name: the common name.
        moments: torch's name of each state tensor → its name in optax.
        elementwise: whether a moment has the shape and arrangement of its weight.
        coupled: whether weight decay is added to the gradient (and so affects the moments).
        call: returns the call for a group's hyper-parameters, and the number of torch tensors
            summed in an array.
        note: a note for the user, or "".
    """

    name: str
    moments: Mapping[str, str]
    call: Callable[[Group, int], OptaxCall]
    elementwise: bool = True
    coupled: bool = False
    note: str = ""


def recognize(groups: Sequence[Group], names: set[str], chosen: str | None = None) -> Kind:
    """Return the optimizer of these groups, whose state has entries of these names.

    Args:
        groups: the entries of `param_groups`.
        names: the names of the state's entries ("exp_avg"), of all parameters together.
        chosen: the user's choice, if the state does not distinguish Adam and AdamW.

    Raises:
        OptimizerError: the optimizer is unknown or ambiguous.
    """
    options = set(groups[0])
    if {"betas", "eps"} <= options and names <= {"step", *_ADAM, *_AMSGRAD}:
        kind = _adam(groups, chosen)
    elif {"momentum", "dampening"} <= options and names <= {"momentum_buffer"}:
        kind = SGD
    elif (
        {"lr", "betas", "weight_decay"} <= options and "eps" not in options and names == {"exp_avg"}
    ):
        kind = LION
    elif {"beta2_decay", "d"} <= options and names <= {"step", "row_var", "col_var", "variance"}:
        kind = ADAFACTOR
    elif {"clip_threshold", "decay_rate", "beta1"} <= options:
        kind = HF_ADAFACTOR
    else:
        raise OptimizerError(
            "the type of the optimizer is unknown; options "
            f"{', '.join(sorted(options - {'params'}))} and the "
            f"state {', '.join(sorted(names)) or '(none)'} is not known",
            "known are SGD, Adam, AdamW, Adafactor (torch's and transformers') and Lion",
        )
    if chosen is not None and chosen != kind.name:
        raise OptimizerError(
            f"the state is not of {chosen}: it is of {kind.name}", "leave the optimizer out"
        )
    return kind


def _adam(groups: Sequence[Group], chosen: str | None) -> Kind:
    amsgrad = {bool(group.get("amsgrad")) for group in groups}
    decoupled = {_is_decoupled(group, chosen) for group in groups}
    if len(amsgrad) > 1 or len(decoupled) > 1:
        raise OptimizerError(
            "its groups are of different kinds (amsgrad, decoupled_weight_decay)",
            "convert the groups of one kind",
        )
    return _ADAMS[decoupled.pop(), amsgrad.pop()]


def _is_decoupled(group: Group, chosen: str | None) -> bool:
    """Whether weight decay is decoupled. AdamW records this since torch 2.7; before, it looks like Adam."""
    if "decoupled_weight_decay" in group:
        return bool(group["decoupled_weight_decay"])
    if chosen in ("adam", "adamw"):
        return chosen == "adamw"
    if group.get("weight_decay"):
        raise OptimizerError(
            "Adam or AdamW: a state of torch before 2.7 does not show which, and with weight decay "
            "they differ",
            "choose one: --optimizer-kind adam or adamw",
        )
    return False


def _sgd(group: Group, terms: int) -> OptaxCall:
    rate, momentum = number(group["lr"]) * terms, number(group["momentum"])
    decay = _decayed(group)
    if not momentum:
        return chained(_maximized(group), decay, call("optax.sgd", rate))
    if group["dampening"]:  # torch leaves the first gradient undamped: that step is over
        damped = call("optax.scale", 1 - number(group["dampening"]))
        return chained(
            _maximized(group),
            decay,
            damped,
            call("optax.trace", decay=momentum),
            call("optax.scale_by_learning_rate", rate),
        )
    nesterov = {"nesterov": True} if group.get("nesterov") else {}
    return chained(_maximized(group), decay, call("optax.sgd", rate, momentum=momentum, **nesterov))


def _adam_call(name: str, *, decoupled: bool) -> Callable[[Group, int], OptaxCall]:
    def made(group: Group, terms: int) -> OptaxCall:
        b1, b2 = map(number, group["betas"])
        rate = number(group["lr"]) * terms
        options: dict[str, Any] = {"b1": b1, "b2": b2, "eps": number(group["eps"])}
        if decoupled:  # each term decays separately, so their sum decays like one term
            options["weight_decay"] = number(group["weight_decay"]) / terms
        decay = None if decoupled else _decayed(group)
        return chained(_maximized(group), decay, call(name, rate, **options))

    return made


def _lion(group: Group, terms: int) -> OptaxCall:
    b1, b2 = map(number, group["betas"])
    decay = number(group["weight_decay"]) / terms
    rate = number(group["lr"]) * terms
    return call("optax.lion", rate, b1=b1, b2=b2, weight_decay=decay)


def _adafactor(group: Group, terms: int) -> OptaxCall:
    eps1, eps2 = group["eps"]
    options = {
        "beta2_decay": number(group["beta2_decay"]),
        "eps1": None if eps1 is None else number(eps1),
        "eps2": number(eps2),
        "d": number(group["d"]),
        "weight_decay": number(group["weight_decay"]),
    }
    result = OptaxCall(
        "transforms.adafactor", (number(group["lr"]),), tuple(options.items()), arranged=True
    )
    return chained(_maximized(group), result)


def _hf_adafactor(group: Group, terms: int) -> OptaxCall:
    rate = None if group["lr"] is None else number(group["lr"])
    options = {
        "eps": tuple(map(number, group["eps"])),
        "clip_threshold": number(group["clip_threshold"]),
        "decay_rate": number(group["decay_rate"]),
        "beta1": None if group["beta1"] is None else number(group["beta1"]),
        "weight_decay": number(group["weight_decay"]),
        "scale_parameter": bool(group["scale_parameter"]),
        "relative_step": bool(group["relative_step"]),
        "warmup_init": bool(group["warmup_init"]),
    }
    return OptaxCall("transforms.hf_adafactor", (rate,), tuple(options.items()), arranged=True)


def _decayed(group: Group) -> OptaxCall | None:
    decay = number(group["weight_decay"])
    return call("optax.add_decayed_weights", decay) if decay else None


def _maximized(group: Group) -> OptaxCall | None:
    return call("optax.scale", -1.0) if group.get("maximize") else None


def kind_of_adam(*, decoupled: bool) -> Kind:
    """Return Adam, or AdamW, without amsgrad."""
    return _ADAMS[decoupled, False]


def number(value: Any) -> Any:
    """Return a hyper-parameter as a number; torch allows a tensor of one element. Code stays code."""
    if isinstance(value, Code):
        return value
    return float(value.item() if hasattr(value, "item") else value)


_ADAM = {"exp_avg": "mu", "exp_avg_sq": "nu"}
_AMSGRAD = {**_ADAM, "max_exp_avg_sq": "nu_max"}
_AMSGRAD_NOTE = (
    "optax.amsgrad takes the maximum of the corrected second moments, torch of the uncorrected: "
    "converters.optimizer.transforms has torch's"
)
SGD = Kind("sgd", {"momentum_buffer": "trace"}, _sgd, coupled=True)
_ADAMS = {
    (False, False): Kind("adam", _ADAM, _adam_call("optax.adam", decoupled=False), coupled=True),
    (True, False): Kind("adamw", _ADAM, _adam_call("optax.adamw", decoupled=True)),
    (False, True): Kind(
        "adam",
        _AMSGRAD,
        _adam_call("transforms.amsgrad", decoupled=False),
        coupled=True,
        note=_AMSGRAD_NOTE,
    ),
    (True, True): Kind(
        "adamw", _AMSGRAD, _adam_call("transforms.amsgradw", decoupled=True), note=_AMSGRAD_NOTE
    ),
}
LION = Kind(
    "lion",
    {"exp_avg": "mu"},
    _lion,
    note="Lion counts no steps in torch: optax's count is 0, and nothing reads it. Its option "
    "decoupled_weight_decay, which the state does not have, divides weight decay by the first lr",
)
_OTHER_AXES = (
    "optax.adafactor factors other axes, with other epsilons: converters.optimizer.transforms has "
    "this one, with its moments in torch's arrangement"
)
ADAFACTOR = Kind(
    "adafactor",
    {"row_var": "row", "col_var": "col", "variance": "v"},
    _adafactor,
    elementwise=False,
    note=_OTHER_AXES,
)
HF_ADAFACTOR = Kind(
    "adafactor",
    {
        "exp_avg_sq_row": "row",
        "exp_avg_sq_col": "col",
        "exp_avg_sq": "v",
        "exp_avg": "mu",
    },
    _hf_adafactor,
    elementwise=False,
    note=_OTHER_AXES,
)
