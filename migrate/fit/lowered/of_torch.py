"""A torch module as the program that torch_xla makes of a step; in a process of its own, on XLA:CPU."""

from __future__ import annotations

from typing import Any

from migrate.fit.errors import FitError
from migrate.fit.lowered.changed import NO_BLOCKS, change
from migrate.fit.lowered.pending import World, pending_program
from migrate.fit.lowered.shapes import shapes_of
from migrate.fit.lowered.step import LoweredStep, Wanted, part_of
from migrate.fit.lowered.torch_step import WARM_UP, forward_step, made_input, training_step
from migrate.parity.sides.torch.training import loss_of


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
    import torch_xla.core.xla_model as xm

    changed = change("remat") if wanted.remat else None
    torch_xla._XLAC._set_ir_debug(True)
    world = World(wanted.devices)
    world.install()
    device = torch_xla.device()
    dtype = getattr(torch, wanted.dtype) if wanted.dtype else None
    module = (module.to(dtype) if dtype else module).to(device)
    module.train(bool(wanted.optimizer))
    inputs = {
        name: made_input(shape, d, dtype).to(device)
        for name, (shape, d) in shapes_of(wanted).items()
    }
    torch_xla.sync()
    run = (
        training_step(module, inputs, wanted, xm.optimizer_step).run
        if wanted.optimizer
        else forward_step(module, inputs, wanted)
    )
    for _ in range(WARM_UP if wanted.optimizer else 0):
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
