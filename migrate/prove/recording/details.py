"""Details of a step that explain a difference: where it was called, on what data, in which mode.

Only the dtypes of matrix multiplications and the settings of the optimizer decide a verdict. The rest is
used once losses, gradients or weights have diverged (`compare.causes`). No torch is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Details:
    """Details of an optimizer step of a rank.

    Attributes:
        lines: lines of the user's code, as "file:line", by the call: "optimizer" (its construction),
            "backward", "clip", "step", "zero_grad", "scheduler", "set_epoch".
        start: sum and sum of squares of the optimizer's parameters before its first step; empty later.
        kind: the class of the optimizer.
        settings: settings of each parameter group, without the learning rate; empty where they are
            unchanged since the step before.
        without_gradient: the first of the parameters without a gradient.
        evaluating: number of modules in evaluation mode.
        synchronized: number of modules that are batch normalizations over all ranks.
        wrapped: number of modules that are a DistributedDataParallel.
        zeroed: calls of `zero_grad` since the step before.
        inputs: for each call of a model with gradients since the step before, and each of its tensors: its
            shape, the sum of its elements with rising weights, and of their squares.
        labels: the same for the targets of the loss functions.
        dtypes: new dtypes of the results of matrix multiplications, by module.
    """

    lines: dict[str, str] = field(default_factory=dict)
    start: tuple[float, ...] = ()
    kind: str = ""
    settings: tuple[dict[str, Any], ...] = ()
    without_gradient: tuple[str, ...] = ()
    evaluating: int = 0
    synchronized: int = 0
    wrapped: int = 0
    zeroed: int = 0
    inputs: tuple[tuple[str, float, float], ...] = ()
    labels: tuple[tuple[str, float, float], ...] = ()
    dtypes: dict[str, tuple[str, ...]] = field(default_factory=dict)


def from_json(values: dict[str, Any]) -> Details:
    """Read back a `Details` from `dataclasses.asdict` and JSON.

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
