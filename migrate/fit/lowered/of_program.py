"""A program of `migrate train` as the program of one update, from shapes alone: nothing is computed."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from migrate.compiler.program import CompilerProgram, on_tpu
from migrate.fit.errors import FitError
from migrate.fit.lowered.step import LoweredStep, ProgramArgument, StepProgram, Wanted
from migrate.parity.sides.jax.passes import in_user_code

# Files by which a folder is known as such a program.
_FILES = ("train.py", "loss.py", "optimizer.py", "recorded.npz", "mapping.yaml")
_OPTIONS = ("inputs", "optimizer", "rules", "dtype", "remat", "shard")


def is_program(target: str) -> bool:
    """Whether a target is a folder that `migrate train` wrote."""
    return all(Path(target, name).is_file() for name in _FILES)


def lower_program(wanted: Wanted) -> LoweredStep:
    """Lower an update: gradients of its micro-batches, their sum, the optimizer.

    The batch is the recorded one. As in the program, its rows are divided over the devices if they can be.

    Raises:
        FitError: an option is for other targets; the program raises.
    """
    for name in _OPTIONS:
        if getattr(wanted, name):
            raise FitError(
                f"{wanted.target}: has its own batch, optimizer and numbers ({name})",
                "leave --inputs, --train, --dtype, --rules and --try out",
            )
    folder = Path(wanted.target).resolve()
    sys.path.insert(0, str(folder))
    import jax
    import jax.numpy as jnp
    import optax
    from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

    mesh = AbstractMesh((wanted.devices,), ("data",))

    def placed(array: Any, *axes: str) -> Any:
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        dtype = jax.dtypes.canonicalize_dtype(array.dtype)
        return jax.ShapeDtypeStruct(array.shape, dtype, sharding=sharding)

    def by_rows(array: Any) -> Any:
        divides = array.ndim > 0 and len(array) % wanted.devices == 0
        return placed(array, *(("data",) if divides else ()))

    with in_user_code(wanted.target):
        loss, train, test_same = map(import_module, ("loss", "train", "test_same"))
        optimizer = import_module("optimizer").optimizer
        inputs_of = getattr(loss, "inputs_of", dict)
        state = train.load()
        micro, _ = next(iter(test_same.updates()))
        inputs = [jax.tree.map(by_rows, inputs_of(batch)) for batch in micro]
        weights = jax.tree.map(placed, (state.params, state.variables, state.opt_state))
        key = (train.KEY,) if hasattr(train, "KEY") else ()
        arguments = (*weights[:2], inputs[0], *key)
        has_aux = isinstance(jax.eval_shape(loss.loss_of, *arguments), tuple)

    def update(params: Any, variables: Any, opt_state: Any, batches: Any) -> Any:
        losses, grads = [], None
        for number, batch in enumerate(batches):
            keys = [jax.random.fold_in(each, number) for each in key]
            value, more = jax.value_and_grad(loss.loss_of, has_aux=has_aux)(
                params, variables, batch, *keys
            )
            if has_aux:
                value, others = value
                variables = {**variables, **others}
            losses.append(value)
            grads = more if grads is None else jax.tree.map(jnp.add, grads, more)
        changes, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, changes), variables, opt_state, losses

    args = (*weights, inputs)
    everywhere = NamedSharding(mesh, PartitionSpec())
    with in_user_code(wanted.target), on_tpu(wanted.devices):
        jitted = jax.jit(
            update, donate_argnums=(0, 1, 2), keep_unused=True, out_shardings=everywhere
        )
        lowered = jitted.trace(*args).lower(lowering_platforms=("tpu",))
        text = lowered.as_text(debug_info=True)
    program = CompilerProgram(wanted.target, "stablehlo", text.encode(), partitioned=True)
    rows = next(len(x) for x in jax.tree.leaves(inputs_of(micro[0])) if getattr(x, "ndim", 0))
    return LoweredStep(
        (StepProgram(program, _arguments(args)),),
        True,
        (_note(rows, wanted),),
        repeated=rows % wanted.devices != 0,
    )


def _note(rows: int, wanted: Wanted) -> str:
    if rows % wanted.devices:
        return (
            f"batch: {rows} rows, as recorded; they cannot be divided by {wanted.devices} devices, so each "
            "device computes all of them"
        )
    return f"batch: {rows} rows in all, as recorded, {rows // wanted.devices} on each device"


def _arguments(args: tuple[Any, ...]) -> tuple[ProgramArgument, ...]:
    import jax

    roles = ("parameter", "statistics", "optimizer state", "input")
    return tuple(
        ProgramArgument(role, jax.tree_util.keystr(path, simple=True, separator="/"))
        for role, tree in zip(roles, args, strict=True)
        for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]
    )
