"""`optimizer.py`: the script's optimizer in optax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from migrate.train.errors import TrainError
from migrate.train.optimizer.recorded import RecordedOptimizer

_ADAM = ("torch.optim.adamw.AdamW", "torch.optim.adam.Adam")
_SGD = "torch.optim.sgd.SGD"


def optimizer_text(
    recorded: RecordedOptimizer, paths: Mapping[str, Sequence[str]], *, whole: bool
) -> str:
    """Source of the optimizer.

    Args:
        recorded: the script's optimizer.
        paths: torch's name of a parameter → its paths in the program.
        whole: whether the recorded learning rates are those of the whole training.

    Raises:
        TrainError: the optimizer or its schedule has no counterpart here.
    """
    rates = [rate[0] for rate in recorded.rates]
    constant = len(set(rates)) == 1
    if not constant and not whole:
        raise TrainError(
            f"{recorded.at}: the learning rates of the whole training are unknown",
            "record all of it with a larger --updates",
        )
    factors = [
        [rate / first if first else 1.0 for rate, first in zip(group, rates, strict=True)]
        for group in zip(*recorded.rates, strict=True)
    ]
    transforms = []
    for number in range(len(recorded.groups)):
        factor = max(factors[number], key=abs)
        if any(
            abs(f - factor) > 1e-6 * abs(factor)
            for f, r in zip(factors[number], rates, strict=True)
            if r
        ):
            raise TrainError(
                f"{recorded.at}: the learning rates of the groups change apart from each other",
                "use one schedule for all groups",
            )
        transforms.append(_transform(recorded, number, factor))
    labels: dict[str, str] = {}
    for number, group in enumerate(recorded.groups):
        for name in group.names:
            if name not in recorded.without_gradient:
                labels |= {
                    p.removeprefix("params/"): f"group {number}" for p in paths.get(name, ())
                }
    clips = []
    for clip in recorded.clips:
        if clip.kind == "value":
            clips.append(f"optax.clip({clip.limit!r}),")
        elif clip.norm_type == 2.0:
            clips.append(f"optax.clip_by_global_norm({clip.limit!r}),")
        else:
            raise TrainError(
                f"{recorded.file}:{clip.line}: gradients are clipped by another norm than the Euclidean",
                "clip by norm_type=2",
            )
    schedule = (
        f'RATE = {rates[0]!r}\n\n\ndef learning_rate(count):\n    """Learning rate of an update."""\n'
        "    return jnp.asarray(RATE)"
        if constant
        else "# The script's learning rates, update by update.\nRATES = jnp.asarray(["
        + ", ".join(map(repr, rates))
        + '])\n\n\ndef learning_rate(count):\n    """Learning rate of an update."""\n'
        "    return RATES[jnp.minimum(count, len(RATES) - 1)]"
    )
    table = "\n".join(f"    {path!r}: {label!r}," for path, label in labels.items())
    members = "\n".join(
        f"        'group {number}': {text}," for number, text in enumerate(transforms)
    )
    return f'''"""The optimizer of {recorded.file}: {recorded.name.rpartition(".")[2]} in optax."""

import jax
import jax.numpy as jnp
import optax

# Group of each parameter.
GROUPS = {{
{table}
}}
{schedule}


def group_of(path, value):
    """Group of a parameter; parameters of no group are not trained."""
    return GROUPS.get("/".join(key.key for key in path), "not trained")


def groups(params):
    """Group of each parameter."""
    return jax.tree_util.tree_map_with_path(group_of, params)


OPTIMIZER = optax.chain(
    {chr(10).join(clips)}
    optax.multi_transform(
        {{
{members}
        'not trained': optax.set_to_zero(),
        }},
        groups,
    ),
)
'''


def _transform(recorded: RecordedOptimizer, number: int, factor: float) -> str:
    options = recorded.groups[number].options
    rate = "learning_rate" if factor == 1.0 else f"lambda count: {factor!r} * learning_rate(count)"
    decay = float(options.get("weight_decay", 0.0))
    for flag in ("amsgrad", "maximize"):
        if options.get(flag):
            raise TrainError(f"{recorded.at}: {flag} has no counterpart here", f"leave out {flag}")
    if recorded.name in _ADAM:
        (b1, b2), eps = options["betas"], options["eps"]
        adam = f"b1={b1!r}, b2={b2!r}, eps={eps!r}"
        if recorded.name == _ADAM[0] or options.get("decoupled_weight_decay"):
            return f"optax.adamw({rate}, {adam}, weight_decay={decay!r})"
        decays = f"optax.add_decayed_weights({decay!r}), " if decay else ""
        return f"optax.chain({decays}optax.adam({rate}, {adam}))"
    if recorded.name == _SGD:
        if options.get("dampening"):
            raise TrainError(f"{recorded.at}: dampening has no counterpart here", "leave it out")
        momentum = f", momentum={options['momentum']!r}" if options.get("momentum") else ""
        nesterov = ", nesterov=True" if options.get("nesterov") else ""
        decays = f"optax.add_decayed_weights({decay!r}), " if decay else ""
        return f"optax.chain({decays}optax.sgd({rate}{momentum}{nesterov}))"
    raise TrainError(
        f"{recorded.at}: {recorded.name.rpartition('.')[2]} has no counterpart in optax here",
        "use AdamW, Adam or SGD",
    )
