"""The proof of a layer entry: torch, linen and nnx give the same output from the same weights.

A round trip cannot prove a layout (any permutation survives it); a forward comparison with
asymmetric shapes can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from converters.checkpoint.pytree import Pytree, flatten, nest
from converters.layers.entry import ForwardCase, LayerEntry, Weights
from converters.layers.join import Join

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ForwardComparison:
    """What a forward case gave.

    Attributes:
        errors: max |flax - torch| / max(1, max |torch|) by side, "linen" and (where the case has
            it) "nnx"; infinite where the converted weights or the output do not fit.
        misfits: names or shapes of the converted weights that a Flax layer does not have, one line
            each; such a layer was not run.
    """

    errors: Mapping[str, float]
    misfits: tuple[str, ...]

    def agrees(self, tolerance: float) -> bool:
        """Whether every side is within the tolerance (NaN is not)."""
        return all(error <= tolerance for error in self.errors.values())


def compare_forward(entry: LayerEntry, case: ForwardCase, seed: int = 0) -> ForwardComparison:
    """Run one case in float32 at the highest matmul precision, every weight and buffer random.

    Norms and the like are compared in inference (running statistics).
    """
    import jax
    import torch

    rng = np.random.default_rng(seed)
    torch_layer = case.torch(torch.nn).eval()
    tensors = _randomise(torch_layer, rng)
    inputs = _inputs(case, rng)
    with torch.no_grad():
        expected = torch_layer(torch.from_numpy(inputs)).numpy()

    flax_inputs = np.moveaxis(inputs, 1, -1) if case.channels_last else inputs
    errors: dict[str, float] = {}
    misfits: list[str] = []
    with jax.default_matmul_precision("highest"):
        for side, run in (("linen", _run_linen), ("nnx", _run_nnx)):
            if side == "nnx" and case.nnx is None:
                continue
            tree = _converted(entry.weights_of(torch_layer), tensors, side)
            found, output = run(case, tree, flax_inputs)
            misfits += [f"{side} {misfit}" for misfit in found]
            errors[side] = _error(case, output, expected)
    return ForwardComparison(errors, tuple(misfits))


def _run_linen(case: ForwardCase, tree: Pytree, inputs: Array) -> tuple[list[str], Array | None]:
    import jax
    from flax import linen

    layer = case.linen(linen)
    wanted = jax.eval_shape(layer.init, jax.random.key(0), inputs)
    misfits = _misfits(flatten(tree), flatten(wanted))
    return misfits, None if misfits else np.asarray(layer.apply(tree, inputs))


def _run_nnx(case: ForwardCase, tree: Pytree, inputs: Array) -> tuple[list[str], Array | None]:
    from flax import nnx

    assert case.nnx is not None
    layer = case.nnx(nnx, nnx.Rngs(0))
    state = nnx.state(layer, nnx.Any(nnx.Param, nnx.BatchStat))
    misfits = _misfits(flatten(tree), flatten(_named(nnx.to_pure_dict(state))))
    if misfits:
        return misfits, None
    nnx.replace_by_pure_dict(state, nnx.restore_int_paths(tree))
    nnx.update(layer, state)
    return [], np.asarray(layer(inputs))


def _named(tree: Pytree) -> Pytree:
    """The same with the positions of lists as names."""
    return {
        str(name): _named(value) if isinstance(value, dict) else value
        for name, value in tree.items()
    }


def _randomise(torch_layer: Any, rng: np.random.Generator) -> dict[str, Any]:
    """Fill every parameter and buffer, so that none has a value that hides its misplacement."""
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
            values = rng.standard_normal(shape) / np.sqrt(max(1, tensor[:1].numel()))
        tensor.copy_(torch.from_numpy(values))
    return tensors


def _inputs(case: ForwardCase, rng: np.random.Generator) -> Array:
    if case.ids_below is not None:
        return rng.integers(0, case.ids_below, case.input_shape)
    return rng.standard_normal(case.input_shape).astype(np.float32)


def _converted(weights: Weights, tensors: dict[str, Any], side: str) -> Pytree:
    pieces: dict[str, list[Array]] = {}
    joins: dict[str, Join] = {}
    for weight in weights:
        if weight.torch not in tensors:  # a case without bias has none
            continue
        tensor = tensors[weight.torch].numpy()
        path = f"{weight.collection}/{weight.linen}" if side == "linen" else weight.nnx
        joins[path] = weight.join
        part = tensor if weight.part is None else weight.part.apply(tensor)
        pieces.setdefault(path, []).append(weight.layout.apply(part))
    return nest(
        (path, np.ascontiguousarray(joins[path].apply(parts))) for path, parts in pieces.items()
    )


def _misfits(given: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    given_shapes = {name: tuple(array.shape) for name, array in given.items()}
    wanted_shapes = {name: tuple(array.shape) for name, array in wanted.items()}
    return [
        f"{name}: converted {given_shapes.get(name)}, the layer has {wanted_shapes.get(name)}"
        for name in sorted(given_shapes.keys() | wanted_shapes.keys())
        if given_shapes.get(name) != wanted_shapes.get(name)
    ]


def _error(case: ForwardCase, output: Array | None, expected: Array) -> float:
    if output is not None and case.channels_last:
        output = np.moveaxis(output, -1, 1)
    if output is None or output.shape != expected.shape:
        return float("inf")
    difference = np.abs(output.astype(np.float64) - expected)
    return float(difference.max() / max(1.0, np.abs(expected).max()))
