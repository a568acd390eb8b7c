"""The proof of a layer entry: torch, linen and nnx give the same output from the same weights.

linen's and nnx's modules are those that the source of the entry's `FlaxCall` makes.

A round trip cannot prove a layout (any permutation survives it); a forward comparison with
asymmetric shapes can.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from converters.checkpoint.dtypes import torch_dtype_name, torch_to_numpy
from converters.checkpoint.pytree import Pytree, flatten, nest
from converters.checkpoint.reader import TensorInfo
from converters.layers.entry import ForwardCase, LayerEntry
from converters.layers.flax_call import Api, FlaxCall
from converters.layers.registry import flax_calls
from converters.mapping.leaves import keys_of, restore
from converters.mapping.module_tree import Outcome, read_slots
from converters.mapping.plan import Plan, make_plan

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ForwardComparison:
    """What a forward case gave.

    Attributes:
        errors: max |flax - torch| / max(1, max |torch|) by side, "linen" and "nnx", over all
            outputs; infinite where the converted weights or an output do not fit.
        misfits: names or shapes of the converted weights that a Flax layer does not have, and keys
            that were refused, one line each; such a layer was not run.
        lost: keys that did not come back bit for bit from the converted weights, by side.
    """

    errors: Mapping[str, float]
    misfits: tuple[str, ...]
    lost: Mapping[str, tuple[str, ...]]

    def agrees(self, tolerance: float) -> bool:
        """Whether every side is within the tolerance (NaN is not)."""
        return all(error <= tolerance for error in self.errors.values())


def compare_forward(
    entry: LayerEntry | None, case: ForwardCase, seed: int = 0
) -> ForwardComparison:
    """Run one case in float32 at the highest matmul precision, every weight and buffer random.

    Norms and the like are compared in inference (running statistics).

    Args:
        entry: stands for that of its kind; None: all entries are as they are.
        case: the layer, three times, and its input.
        seed: of the weights and inputs.
    """
    import jax
    import torch

    rng = np.random.default_rng(seed)
    known = {entry.kind: entry} if entry else None
    torch_layer = case.torch(torch.nn).eval()
    tensors = _randomize(torch_layer, rng)
    inputs, arguments = _inputs(case, rng), case.arguments(rng)
    with torch.no_grad():
        given = (torch.from_numpy(inputs), {**_to_torch(arguments), **case.options})
        expected = [array.numpy() for array in _arrays(case.torch_call(torch_layer, *given))]

    errors: dict[str, float] = {}
    misfits: list[str] = []
    lost: dict[str, tuple[str, ...]] = {}
    sides: tuple[tuple[Api, Any], ...] = (("linen", _run_linen), ("nnx", _run_nnx))
    with jax.default_matmul_precision("highest"):
        for side, run in sides:
            call = call_of(case, torch_layer, side, known)
            last = call.channels_last
            flax_inputs = np.moveaxis(inputs, 1, -1) if last else inputs
            plan = _plan(known, torch_layer, tensors, side)
            tree = {leaf.path: np.array(leaf.read(tensors.__getitem__)) for leaf in plan.leaves}
            refused = [f"{row.key}: {row.note}" for row in plan.refused]
            found, outputs = run(call, case, nest(tree.items()), flax_inputs, arguments)
            if outputs is not None and last:
                outputs = [np.moveaxis(output, -1, 1) for output in outputs]
            misfits += [f"{side} {misfit}" for misfit in refused + found]
            errors[side] = _error(outputs, expected)
            lost[side] = _lost(plan, tree, tensors)
    return ForwardComparison(errors, tuple(misfits), lost)


def call_of(
    case: ForwardCase,
    torch_layer: Any,
    side: Api,
    known: Mapping[str, LayerEntry] | None = None,
) -> FlaxCall:
    """The Flax module that a case is of."""
    return next(
        call for call in flax_calls(torch_layer, side, known) if call.of.startswith(case.of)
    )


def built(call: FlaxCall, rngs: Any = None) -> Any:
    """The module that the source of the call gives, evaluated in inference."""
    return eval(call.source(), _scope(call, rngs))


def _scope(call: FlaxCall, rngs: Any = None) -> dict[str, Any]:
    scope = {"rngs": rngs, "deterministic": True}
    exec("\n".join(call.imports), scope)
    return scope


def _function(call: FlaxCall, case: ForwardCase) -> Any:
    """The module, its inputs and arguments → its outputs, as the source says."""
    if case.flax_call is not None:
        return case.flax_call
    expression = call.applied("layer", "inputs", "**arguments", "**options")
    given = {**_scope(call), "options": case.options}
    return eval(f"lambda layer, inputs, arguments: {expression}", given)


def _run_linen(
    call: FlaxCall, case: ForwardCase, tree: Pytree, inputs: Array, arguments: Mapping[str, Any]
) -> tuple[list[str], list[Array] | None]:
    import jax

    layer, function = built(call), _function(call, case)

    def init() -> Any:
        return layer.init(jax.random.key(0), inputs, arguments, method=function)

    @jax.jit
    def run(tree: Pytree, inputs: Array, arguments: Mapping[str, Any]) -> Any:
        return layer.apply(tree, inputs, arguments, method=function)

    misfits = _misfits(flatten(tree), flatten(jax.eval_shape(init)))
    if misfits:
        return misfits, None
    return [], [np.asarray(array) for array in _arrays(run(tree, inputs, arguments))]


def _run_nnx(
    call: FlaxCall, case: ForwardCase, tree: Pytree, inputs: Array, arguments: Mapping[str, Any]
) -> tuple[list[str], list[Array] | None]:
    import jax
    from flax import nnx

    # Without values: to draw those that are replaced anyway would cost more than the comparison.
    layer = nnx.eval_shape(lambda: built(call, nnx.Rngs(0)))
    layer.eval()
    state = nnx.state(layer, nnx.Any(nnx.Param, nnx.BatchStat))
    misfits = _misfits(flatten(tree), flatten(_named(nnx.to_pure_dict(state))))
    if misfits:
        return misfits, None
    nnx.replace_by_pure_dict(state, nnx.restore_int_paths(tree))
    nnx.update(layer, state)
    graph, state, streams = nnx.split(layer, nnx.Any(nnx.Param, nnx.BatchStat), ...)
    keys = jax.tree.map(_unused, streams)  # of dropout, which is off

    function = _function(call, case)

    @jax.jit
    def run(state: Any, inputs: Array, arguments: Mapping[str, Any]) -> Any:
        return function(nnx.merge(graph, state, keys), inputs, arguments)

    return [], [np.asarray(array) for array in _arrays(run(state, inputs, arguments))]


def _unused(abstract: Any) -> Any:
    """A value of this shape and dtype."""
    import jax

    if jax.dtypes.issubdtype(abstract.dtype, jax.dtypes.prng_key):
        return jax.random.key(0)
    return np.zeros(abstract.shape, abstract.dtype)


def _named(tree: Pytree) -> Pytree:
    """The same with the positions of lists as names."""
    return {
        str(name): _named(value) if isinstance(value, dict) else value
        for name, value in tree.items()
    }


def _randomize(torch_layer: Any, rng: np.random.Generator) -> dict[str, Array]:
    """Fill every parameter and buffer, so that none has a value that hides its misplacement.

    Returns:
        The state dict's arrays.
    """
    import torch

    buffers = {name for name, _ in torch_layer.named_buffers()}
    tensors: dict[str, Any] = torch_layer.state_dict()
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            continue
        shape = tuple(tensor.shape)
        if name in buffers:  # running variances must be positive
            values = rng.uniform(0.5, 1.5, shape)
        else:  # outputs of order one, so that an absolute tolerance means something
            values = rng.standard_normal(shape) / np.sqrt(max(1, math.prod(shape[1:])))
        tensor.copy_(torch.from_numpy(np.asarray(values)))
    return {name: torch_to_numpy(tensor, name).copy() for name, tensor in tensors.items()}


def _inputs(case: ForwardCase, rng: np.random.Generator) -> Array:
    if case.ids_below is not None:
        return rng.integers(0, case.ids_below, case.input_shape)
    return rng.standard_normal(case.input_shape).astype(np.float32)


def _to_torch(arguments: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    return {
        name: tuple(torch.from_numpy(part) for part in value)
        if isinstance(value, tuple)
        else torch.from_numpy(value)
        for name, value in arguments.items()
    }


def _arrays(output: Any) -> Iterator[Any]:
    """The arrays of an output, one after the other; None (weights that were not asked for) is none."""
    if isinstance(output, tuple | list):
        for part in output:
            yield from _arrays(part)
    elif output is not None:
        yield output


def _plan(
    known: Mapping[str, LayerEntry] | None,
    torch_layer: Any,
    tensors: dict[str, Array],
    side: Api,
) -> Plan:
    """The conversion that a user gets, with these entries for their kinds."""
    slots = read_slots(torch_layer, side, known)
    state = torch_layer.state_dict()
    infos = {
        name: TensorInfo(array.shape, torch_dtype_name(state[name]))
        for name, array in tensors.items()
    }
    return make_plan("the case", infos, slots)


def _lost(plan: Plan, tree: Mapping[str, Array], tensors: Mapping[str, Array]) -> tuple[str, ...]:
    """The mapped keys that the way back does not give again, bit for bit."""
    leaves = keys_of(plan.leaves)
    infos = {name: TensorInfo(array.shape, array.dtype.name) for name, array in tensors.items()}
    lost = []
    for row in plan.rows:
        if row.outcome is Outcome.MAPPED:
            back = restore(row.key, infos[row.key], leaves[row.key], infos, tree.__getitem__)
            if back is None or back.tobytes() != tensors[row.key].tobytes():
                lost.append(row.key)
    return tuple(lost)


def _misfits(given: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    given_shapes = {name: tuple(array.shape) for name, array in given.items()}
    wanted_shapes = {name: tuple(array.shape) for name, array in wanted.items()}
    return [
        f"{name}: converted {given_shapes.get(name)}, the layer has {wanted_shapes.get(name)}"
        for name in sorted(given_shapes.keys() | wanted_shapes.keys())
        if given_shapes.get(name) != wanted_shapes.get(name)
    ]


def _error(outputs: list[Array] | None, expected: list[Array]) -> float:
    if outputs is None or [one.shape for one in outputs] != [one.shape for one in expected]:
        return float("inf")
    errors = [
        float(np.abs(output.astype(np.float64) - wanted).max() / max(1.0, np.abs(wanted).max()))
        for output, wanted in zip(outputs, expected, strict=True)
    ]
    return float("nan") if np.isnan(errors).any() else max(errors)
