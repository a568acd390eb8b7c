"""Small JAX models, and how tests run one as a side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

from migrate.parity.dump.dump import Dump
from migrate.parity.dump.reference import Forced
from migrate.parity.ground.alignment import LayerAlignment, Pair, TensorPair
from migrate.parity.ground.settings import TRUTH, SideSettings
from migrate.parity.inputs.set import InputSet, write_inputs
from migrate.parity.sides.capture import capture_into
from migrate.parity.sides.jax.runner import JaxRunner

RANDOM = np.random.default_rng


class Block(linen.Module):
    """A layer whose own addition is seen only where it is fed; eps is what a test may plant."""

    epsilon: float = 1e-6

    @linen.compact
    def __call__(self, x: Any) -> Any:
        y = linen.LayerNorm(epsilon=self.epsilon)(x)
        y = linen.MultiHeadDotProductAttention(2)(y)
        return x + linen.gelu(linen.Dense(x.shape[-1])(y))


class Stack(linen.Module):
    """Blocks one after the other; the eps of each."""

    epsilons: tuple[float, ...] = (1e-6,) * 4

    @linen.compact
    def __call__(self, x: Any) -> Any:
        for number, epsilon in enumerate(self.epsilons):
            x = Block(epsilon, name=f"block_{number}")(x)
        return x


class Net(linen.Module):
    """A convolution net with BatchNorm and dropout."""

    @linen.compact
    def __call__(self, image: Any, train: bool) -> dict[str, Any]:
        x = linen.Conv(4, (3, 3))(image)
        x = linen.BatchNorm(use_running_average=not train)(x)
        x = linen.Dropout(0.5, deterministic=not train)(linen.relu(x))
        x = x.mean((1, 2))
        return {"features": x, "logits": linen.Dense(3)(x)}


class NnxBlock(nnx.Module):
    """A residual block."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.dense = nnx.Linear(width, width, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return x + nnx.gelu(self.dense(self.norm(x)))


class NnxNet(nnx.Module):
    """BatchNorm, dropout and a list of blocks, one of them called twice."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.blocks = nnx.List([NnxBlock(8, rngs) for _ in range(2)])
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: Any) -> tuple[Any, Any]:
        for block in (*self.blocks, self.blocks[0]):
            x = block(x)
        return x, self.dropout(self.norm(x))


def tanh_of(params: Any, x: Any, scale: Any = None, train: bool = False) -> dict[str, Any]:
    """A plain function."""
    del train
    y = jnp.tanh(x @ params["w"])
    return {"y": y if scale is None else y * scale}


def given(folder: Path, count: int = 2, **shapes: tuple[int, ...]) -> InputSet:
    """Inputs of these shapes."""
    random = RANDOM(0)
    arrays = [
        {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        for _ in range(count)
    ]
    return write_inputs(folder, arrays)


def dump(
    runner: JaxRunner,
    inputs: InputSet,
    folder: Path,
    settings: SideSettings | None = None,
    **options: Any,
) -> Dump:
    """What a run wrote."""
    capture_into(runner, settings or SideSettings(), inputs, folder, **options)
    return Dump(folder)


def same_model(truth: Dump) -> LayerAlignment:
    """Every layer is its own partner."""
    pairs = []
    for layer in truth.layers:
        call = next(iter(truth.of(layer)))
        arguments, outputs = (
            tuple(TensorPair(ref.path, ref.path) for ref in refs)
            for refs in (call.arguments, call.outputs)
        )
        pairs.append(Pair(layer, layer, "same model", arguments=arguments, outputs=outputs))
    return LayerAlignment(tuple(pairs))


def truth_and_local(
    truth: JaxRunner, side: JaxRunner, inputs: InputSet, folder: Path
) -> tuple[Dump, Dump]:
    """The truth's dump, and the side's with each layer fed with it; both with the truth's weights."""
    truth.prepare(SideSettings(), inputs)
    truth.save_weights(folder / "weights.safetensors")
    side.load_weights(folder / "weights.safetensors")
    right = dump(truth, inputs, folder / "truth", TRUTH)
    forced = Forced(right.folder, same_model(right))
    return right, dump(side, inputs, folder / "local", forced=forced)


def errors(truth: Dump, side: Dump) -> dict[tuple[str, int], float]:
    """Layer and number of its call → the largest relative L2 error of its outputs, over the inputs."""
    found: dict[tuple[str, int], float] = {}
    for layer in truth.layers:
        for right, mine in zip(truth.of(layer), side.of(layer), strict=True):
            assert (right.number, right.input) == (mine.number, mine.input)
            for theirs, own in zip(right.outputs, mine.outputs, strict=True):
                error = relative(side.tensor(own), truth.tensor(theirs))
                found[layer, right.number] = max(error, found.get((layer, right.number), 0.0))
    return found


def relative(one: Any, other: Any) -> float:
    """Relative L2."""
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    return float(np.linalg.norm(one - other) / max(np.linalg.norm(other), 1e-300))


def values(dumped: Dump, number: int = 0) -> Mapping[str, Any]:
    """The outputs of an input."""
    return {ref.path: dumped.tensor(ref) for ref in dumped.outputs[number]}
