"""What a step left behind that explains a difference: where it was called, on what data, in which mode.

Nothing here decides a verdict but the dtypes of matrix multiplications and the settings of the optimizer;
the rest is looked at once losses, gradients or weights have parted (`compare.causes`). No torch is
imported here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Details:
    """Of one optimizer step of one rank.

    Attributes:
        lines: of the user's code, as "file:line", by what was called there: "optimizer" (its
            construction), "backward", "clip", "step", "zero_grad", "scheduler", "set_epoch".
        start: sum and sum of squares of the optimizer's parameters before its first step; empty later.
        kind: the class of the optimizer.
        settings: of each parameter group, without the learning rate; empty where they are those of the
            step before.
        without_gradient: the first of the parameters without a gradient.
        evaluating: how many modules are in evaluation mode.
        synchronised: how many modules are batch normalisations over all ranks.
        wrapped: how many modules are a DistributedDataParallel.
        zeroed: calls of `zero_grad` since the step before.
        inputs: of each call of a model with gradients since the step before, for each of its tensors:
            its shape, the sum of its elements with rising weights, and of their squares.
        labels: the same of the targets of the loss functions.
        dtypes: those of the results of matrix multiplications, by module, as far as new.
    """

    lines: dict[str, str] = field(default_factory=dict)
    start: tuple[float, ...] = ()
    kind: str = ""
    settings: tuple[dict[str, Any], ...] = ()
    without_gradient: tuple[str, ...] = ()
    evaluating: int = 0
    synchronised: int = 0
    wrapped: int = 0
    zeroed: int = 0
    inputs: tuple[tuple[str, float, float], ...] = ()
    labels: tuple[tuple[str, float, float], ...] = ()
    dtypes: dict[str, tuple[str, ...]] = field(default_factory=dict)


def from_json(values: dict[str, Any]) -> Details:
    """Read back what `dataclasses.asdict` and JSON made of a `Details`.

    Raises:
        TypeError: a field is unknown.
    """
    read: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    for name in ("inputs", "labels"):
        read[name] = tuple(map(tuple, values.get(name, ())))
    read["dtypes"] = {name: tuple(seen) for name, seen in values.get("dtypes", {}).items()}
    return Details(**read)
