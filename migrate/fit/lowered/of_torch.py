"""A torch module as the program that torch_xla makes of a step; in a process of its own, on XLA:CPU."""

from __future__ import annotations

from typing import Any

from migrate.fit.errors import FitError
from migrate.fit.lowered.changed import NO_BLOCKS, change
from migrate.fit.lowered.pending import World, pending_program
from migrate.fit.lowered.shapes import shapes_of
from migrate.fit.lowered.step import LoweredStep, Wanted, part_of
from migrate.parity.sides.torch.call import call
from migrate.parity.sides.torch.training import loss_of, optimizer_of

# Of each a step has run before the one that is taken: the optimizer's state is there then.
_WARM_UP = 2
_ANY_RATE = 1e-3


def lower_torch(module: Any, wanted: Wanted) -> LoweredStep:
    """Run a module on XLA:CPU until its steps are equal, and lower the next step.

    Raises:
        FitError: nothing is computed on the device, or it is asked for what only Flax models have.
        InputsError, ParityError: the module does not take the inputs, or raises.
    """
    if wanted.mesh or wanted.shard:
        raise FitError(
            f"{wanted.target}: a torch module runs as replicas only",
            "--mesh, --spec and --try shard are for Flax models",
        )
    if wanted.loss != "auto":
        loss_of(wanted.loss)  # before anything runs, should there be none
    import torch
    import torch_xla

    changed = change("remat") if wanted.remat else None
    torch_xla._XLAC._set_ir_debug(True)
    world = World(wanted.devices)
    world.install()
    device = torch_xla.device()
    dtype = getattr(torch, wanted.dtype) if wanted.dtype else None
    module = (module.to(dtype) if dtype else module).to(device)
    module.train(bool(wanted.optimizer))
    inputs = {
        name: _made(shape, d, dtype).to(device) for name, (shape, d) in shapes_of(wanted).items()
    }
    torch_xla.sync()
    run = (
        _training(module, inputs, wanted) if wanted.optimizer else _forward(module, inputs, wanted)
    )
    for _ in range(_WARM_UP if wanted.optimizer else 0):
        kept = run()
        torch_xla.sync()
    if changed is not None and not changed():
        raise FitError(f"{wanted.target}: {NO_BLOCKS}", "use torch.utils.checkpoint in the model")
    world.trace_for_all()
    kept = run()
    program = pending_program()
    del kept
    if program is None:
        raise FitError(
            f"{wanted.target}: computes nothing on the device",
            "name a module that computes tensors",
        )
    return LoweredStep((part_of(program, wanted.target),), bool(wanted.optimizer))


def _forward(module: Any, inputs: dict[str, Any], wanted: Wanted) -> Any:
    import torch

    def run() -> Any:
        with torch.no_grad():
            return call(module, module, inputs, wanted.target)

    return run


def _training(module: Any, inputs: dict[str, Any], wanted: Wanted) -> Any:
    import torch
    import torch_xla.core.xla_model as xm

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
        xm.optimizer_step(optimizer)
        return loss

    return run


def _made(shape: tuple[int, ...], dtype: str, wanted: Any) -> Any:
    import torch

    if dtype.startswith(("float", "bfloat")):
        return torch.zeros(shape, dtype=wanted or torch.float32)
    return torch.zeros(shape, dtype=torch.bool if dtype == "bool" else torch.int64)
