"""A Flax model or a JAX function as the program of a step, from shapes alone: nothing is computed."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from converters.checkpoint.reader import TensorInfo
from converters.errors import ConversionError
from converters.output.sharding import load_rules, partition
from migrate.compiler.program import CompilerProgram, on_tpu
from migrate.fit.errors import FitError
from migrate.fit.lowered.optimizers import optimizer_named
from migrate.fit.lowered.shapes import shapes_of
from migrate.fit.lowered.step import LoweredStep, ProgramArgument, StepProgram, Wanted
from migrate.parity.sides.jax.arguments import BoundInputs
from migrate.parity.sides.jax.capture.values import tensors
from migrate.parity.sides.jax.linen import LinenModel
from migrate.parity.sides.jax.passes import in_user_code
from migrate.parity.sides.jax.runner import JaxRunner
from migrate.parity.sides.jax.training import loss_of, training_step

# The arguments of `training_step`, by what they are.
_ROLES = {
    "trained": "parameter",
    "kept": "statistics",
    "state": "optimizer state",
    "args": "input",
    "kwargs": "input",
    "wanted": "input",
}
_BATCH_AXES = ("data", "batch", "fsdp", "dp", "replica")


def lower_jax(runner: JaxRunner, wanted: Wanted) -> LoweredStep:
    """Lower a step for a mesh of devices that are not there.

    Raises:
        FitError, InputsError, ParityError: the model does not take the inputs, or raises; a mesh or rules
            that do not fit.
    """
    import jax

    if isinstance(runner.model, LinenModel):
        runner.model.keep_stacked()
    rules = runner.model.partition if wanted.mesh and not wanted.rules else None
    layout = _Layout(wanted, None if rules is None else runner.model.batch_axes)
    shapes = shapes_of(wanted)
    alone = {name: _struct(shape, _dtype(dtype, wanted)) for name, (shape, dtype) in shapes.items()}
    with in_user_code(wanted.target):
        replica = runner.call.bind(alone)
        weights = {
            name: _cast(array, wanted) for name, array in runner.model.shapes(replica).items()
        }
    specs = (
        _specs(weights, layout, wanted)
        if rules is None
        else _of_port(rules, runner.model.batch_axes, weights, layout, wanted)
    )
    if wanted.shard:
        specs = {name: layout.cut(array, specs[name]) for name, array in weights.items()}
    there = {name: layout.placed(array, specs[name]) for name, array in weights.items()}
    bound = BoundInputs(
        tuple(layout.batch(array) for array in replica.args),
        {name: layout.batch(array) for name, array in replica.kwargs.items()},
        replica.modes,
        replica.renamed,
    )
    inputs = (bound.args, dict(bound.kwargs))
    args: tuple[Any, ...]
    if wanted.optimizer:
        tokens = any(np.issubdtype(_plain(dtype), np.integer) for _, dtype in shapes.values())
        function, state = _training(runner, wanted, bound, there, specs, layout, tokens=tokens)
        args = (*state[:3], *inputs, state[3])
    else:
        function, args = _outputs(runner, bound, train=False), (there, *inputs)
    with in_user_code(wanted.target), layout.around(rules is not None), on_tpu(wanted.devices):
        donated = (0, 1, 2) if wanted.optimizer else ()
        traced = jax.jit(function, donate_argnums=donated, keep_unused=True).trace(*args)
        text = traced.lower(lowering_platforms=("tpu",)).as_text(debug_info=True)
    program = CompilerProgram(wanted.target, "stablehlo", text.encode(), partitioned=True)
    roles = _arguments(args, training=bool(wanted.optimizer))
    notes = tuple(_notes(wanted, layout))
    return LoweredStep((StepProgram(program, roles),), bool(wanted.optimizer), notes)


def _notes(wanted: Wanted, layout: _Layout) -> Iterator[str]:
    replicas = layout.replicas
    if replicas > 1:
        yield f"batch: what --inputs says for each of {replicas} replicas, {replicas} times that in all"
    if wanted.optimizer:
        yield "dropout is off"
        if wanted.remat:
            yield (
                "the forward pass is computed again for the gradients, in pieces: "
                "cut where the least is alive (jax.checkpoint, nn.remat of a block)"
            )
        if wanted.shard:
            yield (
                "weights and optimizer state are cut along the axes of the batch"
                if layout.over
                else "shard changes nothing: the mesh has no axis that the batch is divided over"
            )


class _Layout:
    """Layout of arrays on a mesh whose devices are absent.

    Args:
        wanted: what is asked.
        batch_axes: axes of a mesh that a port with rules divides the batch over; on a mesh without them its
            batch is whole. None: axes with a usual name, else the first axis.

    Attributes:
        mesh: axis → devices.
        over: the axes that the batch is divided over.
        replicas: number of replicas, each with a batch of its own.
    """

    def __init__(self, wanted: Wanted, batch_axes: Sequence[str] | None = None) -> None:
        from jax.sharding import AbstractMesh

        self.mesh = dict(wanted.mesh) or {"data": wanted.devices}
        self._abstract = AbstractMesh(tuple(self.mesh.values()), tuple(self.mesh))
        usual = _BATCH_AXES if batch_axes is None else batch_axes
        named = tuple(axis for axis in self.mesh if axis in usual)
        self.over = named if named or batch_axes is not None else (next(iter(self.mesh)),)
        self.replicas = math.prod(self.mesh[axis] for axis in self.over)

    def placed(self, array: Any, spec: tuple[Any, ...]) -> Any:
        """The array, cut along these axes of the mesh."""
        import jax
        from jax.sharding import NamedSharding, PartitionSpec

        sharding = NamedSharding(self._abstract, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)

    def cut(self, array: Any, spec: tuple[Any, ...]) -> tuple[Any, ...]:
        """Shard the longest axis that is whole and divisible along the axes of the batch."""
        there = (*spec, *[None] * (len(array.shape) - len(spec)))
        used = {axis for each in there for axis in (each if isinstance(each, tuple) else (each,))}
        free = [
            place
            for place, side in enumerate(array.shape)
            if there[place] is None and side % self.replicas == 0
        ]
        if not self.over or not free or used & set(self.over):
            return spec
        longest = max(free, key=lambda place: array.shape[place])
        return (*there[:longest], self._along, *there[longest + 1 :])

    def of_rules(
        self, rules: Callable[[Any, Any], Any], weights: Any
    ) -> dict[str, tuple[Any, ...]]:
        """The specs by the partition rules of a port."""
        return {name: tuple(spec) for name, spec in rules(weights, self._abstract).items()}

    def around(self, constrained: bool) -> contextlib.AbstractContextManager[Any]:
        """Context in which a port constrains its activations to the mesh."""
        import jax

        if not constrained:
            return contextlib.nullcontext()
        return jax.sharding.use_abstract_mesh(self._abstract)

    @property
    def _along(self) -> Any:
        if not self.over:
            return None
        return self.over if len(self.over) > 1 else self.over[0]

    def batch(self, array: Any) -> Any:
        """Return the batch of all replicas together, from the batch of one replica."""
        if not array.shape:
            return self.placed(array, ())
        whole = _struct((array.shape[0] * self.replicas, *array.shape[1:]), array.dtype)
        return self.placed(whole, (self._along,))


def _outputs(
    runner: JaxRunner, bound: BoundInputs, *, train: bool
) -> Callable[..., dict[str, Any]]:
    def forward(weights: Any, args: Any, kwargs: Any) -> dict[str, Any]:
        here = BoundInputs(args, kwargs, bound.modes, bound.renamed)
        return tensors(runner.model.apply(weights, here, train=train)[0])

    return forward


def _training(
    runner: JaxRunner,
    wanted: Wanted,
    bound: BoundInputs,
    there: Mapping[str, Any],
    specs: Mapping[str, Any],
    layout: _Layout,
    *,
    tokens: bool,
) -> tuple[Callable[..., Any], tuple[Any, Any, Any, Any]]:
    """The step, and (weights, other weights, optimizer state, targets)."""
    import jax

    model = _rematerialized(runner.model) if wanted.remat else runner.model
    trained = {name: array for name, array in there.items() if model.is_parameter(name)}
    kept = {name: array for name, array in there.items() if name not in trained}
    if not trained:
        raise FitError(f"{wanted.target}: has no weights to train", "leave --train out")
    with in_user_code(wanted.target):
        forward = _outputs(runner, bound, train=True)
        outputs = jax.eval_shape(forward, there, bound.args, dict(bound.kwargs))
    output, loss, target = _loss(outputs, wanted, tokens=tokens)
    optimizer = optimizer_named(wanted.optimizer)
    state = jax.tree_util.tree_map_with_path(
        lambda path, leaf: layout.placed(leaf, _like(path, leaf, trained, specs)),
        jax.eval_shape(optimizer.init, trained),
    )
    step = training_step(model, bound, optimizer, loss_of(loss), output)
    replicas = layout.replicas
    array = _struct((target.shape[0] // replicas, *target.shape[1:]), target.dtype)
    return step, (trained, kept, state, {"target": layout.batch(array)})


def _rematerialized(model: Any) -> Any:
    """The model, whose values are computed again for the gradients instead of kept."""
    import copy

    from migrate.fit.lowered.remat import in_pieces

    changed = copy.copy(model)
    original = model.apply

    def apply(weights: Any, bound: BoundInputs, *, train: bool = False) -> Any:
        def run(weights: Any, args: Any, kwargs: Any) -> Any:
            return original(
                weights, BoundInputs(args, kwargs, bound.modes, bound.renamed), train=train
            )

        return in_pieces(run)(weights, bound.args, dict(bound.kwargs))

    changed.apply = apply
    return changed


def _loss(outputs: Mapping[str, Any], wanted: Wanted, *, tokens: bool) -> tuple[str, str, Any]:
    """The output that the loss is of, the loss's name, and the target of all replicas.

    `auto`: of tokens, the cross entropy of the first output where it has three axes; else the mean square.
    """
    floating = {n: o for n, o in outputs.items() if np.issubdtype(_plain(o.dtype), np.floating)}
    if not floating:
        raise FitError(
            f"{wanted.target}: returns nothing that a loss can be computed from",
            "leave --train out",
        )
    name, output = next(iter(floating.items()))
    loss = wanted.loss
    if loss == "auto":
        loss = "cross_entropy" if tokens and len(output.shape) > 2 else "mse"
    if loss == "cross_entropy":
        return name, loss, _struct(output.shape[:-1], np.int32)
    return name, loss, output


def _of_port(
    rules: Callable[[Any, Any], Any],
    batch_axes: Sequence[str],
    weights: Mapping[str, Any],
    layout: _Layout,
    wanted: Wanted,
) -> dict[str, Any]:
    """The specs by the partition rules of a port."""
    try:
        specs = layout.of_rules(rules, dict(weights))
    except ValueError as error:
        raise FitError(
            f"{wanted.target}: {error}", "use another --mesh, or edit the rules"
        ) from None
    used = {axis for spec in specs.values() for axis in spec} | set(batch_axes)
    for axis, devices in layout.mesh.items():
        if devices > 1 and axis not in used:
            raise FitError(
                f"--mesh {axis}={devices}: no rule of {wanted.target} divides a weight over {axis}",
                "use data, fsdp, tensor or expert",
            )
    return specs


def _specs(weights: Mapping[str, Any], layout: _Layout, wanted: Wanted) -> dict[str, Any]:
    mesh = layout.mesh
    if not wanted.rules:
        return dict.fromkeys(weights, ())
    infos = {name: TensorInfo(tuple(a.shape), str(a.dtype)) for name, a in weights.items()}
    try:
        return dict(partition(infos, mesh, load_rules(Path(wanted.rules), mesh)).specs)
    except ConversionError as error:
        raise FitError(error.what, error.remedy) from None


def _like(path: Any, leaf: Any, trained: Mapping[str, Any], specs: Mapping[str, Any]) -> Any:
    """The state of a weight lies as the weight does."""
    for key in reversed(path):
        name = str(getattr(key, "key", ""))
        if name in trained and trained[name].shape == leaf.shape:
            return specs[name]
    return ()


def _arguments(args: tuple[Any, ...], *, training: bool) -> tuple[ProgramArgument, ...]:
    import jax

    names = list(_ROLES) if training else ["trained", "args", "kwargs"]
    arguments = []
    for name, tree in zip(names, args, strict=True):
        for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]:
            text = jax.tree_util.keystr(path, simple=True, separator="/")
            arguments.append(ProgramArgument(_ROLES[name], text))
    return tuple(arguments)


def _struct(shape: tuple[int, ...], dtype: Any) -> Any:
    import jax

    return jax.ShapeDtypeStruct(shape, dtype)


def _plain(dtype: Any) -> np.dtype[Any]:
    """bfloat16 counts as floating, which numpy alone does not know."""
    return np.dtype(np.float32) if str(dtype) == "bfloat16" else np.dtype(dtype)


def _dtype(dtype: str, wanted: Wanted) -> Any:
    import jax.numpy as jnp

    real = dtype in ("float32", "float64", "float16", "bfloat16")
    named = {"int64": "int32", "float64": "float32"}.get(dtype, dtype)
    return jnp.dtype(wanted.dtype if real and wanted.dtype else named)


def _cast(array: Any, wanted: Wanted) -> Any:
    if wanted.dtype and np.issubdtype(_plain(array.dtype), np.floating):
        return _struct(array.shape, _dtype("float32", wanted))
    return _struct(array.shape, array.dtype)
