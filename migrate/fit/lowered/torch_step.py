"""A step of a torch module: its forward pass, or a step of training with an optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from migrate.fit.errors import FitError
from migrate.fit.lowered.step import Wanted
from migrate.parity.sides.torch.call import call
from migrate.parity.sides.torch.training import loss_of, optimizer_of

# Runs of a training step before the step that is lowered: the optimizer's state exists then.
WARM_UP = 2
_ANY_RATE = 1e-3


@dataclass(frozen=True)
class ModuleTraining:
    """A step of training.

    Attributes:
        run: runs the step and returns its loss.
        optimizer: the optimizer.
        targets: the target of the loss, after the first run.
    """

    run: Callable[[], Any]
    optimizer: Any
    targets: list[Any]


def forward_step(module: Any, inputs: dict[str, Any], wanted: Wanted) -> Callable[[], Any]:
    """Return a function that runs the forward pass."""
    import torch

    def run() -> Any:
        with torch.no_grad():
            return call(module, module, inputs, wanted.target)

    return run


def training_step(
    module: Any, inputs: dict[str, Any], wanted: Wanted, update: Callable[[Any], object]
) -> ModuleTraining:
    """Return a step of training; its first run makes the targets.

    Args:
        module: the model, on its device.
        inputs: the inputs, on the device.
        wanted: description of the program.
        update: called with the optimizer, once the gradients are there.

    Raises:
        FitError: the model has no weights to train.
    """
    import torch

    weights = [weight for weight in module.parameters() if weight.requires_grad]
    if not weights:
        raise FitError(f"{wanted.target}: has no weights to train", "leave --train out")
    optimizer = optimizer_of(wanted.optimizer, _ANY_RATE, weights, wanted.target)
    tokens = any(not tensor.is_floating_point() for tensor in inputs.values())
    targets: list[Any] = []

    def run() -> Any:
        optimizer.zero_grad()
        outputs = [output for _, output in call(module, module, inputs, wanted.target)]
        floating = [output for output in outputs if output.is_floating_point()]
        if not floating:
            raise FitError(
                f"{wanted.target}: returns nothing that a loss can be computed from",
                "leave --train out",
            )
        output, name = floating[0], wanted.loss
        if name == "auto":
            name = "cross_entropy" if tokens and output.ndim > 2 else "mse"
        if not targets:
            classes = name == "cross_entropy"
            shape, dtype = (
                (output.shape[:-1], torch.int64) if classes else (output.shape, output.dtype)
            )
            targets.append(torch.zeros(shape, dtype=dtype).to(output.device))
        loss = loss_of(name)(output, targets[0], None)
        loss.backward()
        update(optimizer)
        return loss

    return ModuleTraining(run, optimizer, targets)


def made_input(shape: tuple[int, ...], dtype: str, wanted: Any) -> Any:
    """Return an input of zeros on the CPU."""
    import torch

    if dtype.startswith(("float", "bfloat")):
        return torch.zeros(shape, dtype=wanted or torch.float32)
    return torch.zeros(shape, dtype=torch.bool if dtype == "bool" else torch.int64)
