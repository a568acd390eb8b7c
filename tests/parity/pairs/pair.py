"""A pair: a torch model, its port as an engineer writes it, and the mistakes that can be made in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

Array = np.ndarray[Any, Any]
Kind = Literal["linen", "nnx", "jax", "torch"]


@dataclass(frozen=True)
class Fault:
    """One mistake.

    Attributes:
        name: what the port's factory is called with.
        imitates: what somebody did or believed, a sentence.
        layer: the truth's layer whose own operations are wrong.
        cause: the name of the cause that `migrate parity` is to give; None: it has no such variant.
        spoil: if the mistake is one of the hand-written conversion, not of the code: what it does to the
            right weights, path → array. The port is then the clean one.
    """

    name: str
    imitates: str
    layer: str
    cause: str | None = None
    spoil: Callable[[dict[str, Array]], None] | None = None


@dataclass(frozen=True)
class Pair:
    """A torch model and its port.

    Attributes:
        name: of the pair.
        kind: what the port is. "jax": a function of (params, *inputs).
        torch: builds the torch model; its weights are those of `randomized`.
        other: builds the port, with a fault's name or "".
        inputs: makes one input of a generator; arguments by name, as torch takes them.
        channels_last: arguments that the port takes channels last.
        outputs_last: outputs that it gives channels last.
        options: for `converters` (`scan`, `example`).
        fitted: whether the port has names of its own, to which the weights are fitted.
        faults: the mistakes.
    """

    name: str
    kind: Kind
    torch: Callable[[], torch.nn.Module]
    other: Callable[[str], Any]
    inputs: Callable[[np.random.Generator], dict[str, Array]]
    channels_last: tuple[str, ...] = ()
    outputs_last: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    fitted: bool = False
    faults: tuple[Fault, ...] = ()


def randomized(pair: Pair, seed: int = 0) -> torch.nn.Module:
    """The torch model in inference mode; nothing in it is the one or zero that would hide a wrong place."""
    torch.manual_seed(seed)
    model = pair.torch().eval()
    generator = torch.Generator().manual_seed(seed + 1)

    def normal(tensor: torch.Tensor) -> torch.Tensor:
        return torch.randn(tensor.shape, generator=generator)

    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("running_var"):
                tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator))
            elif name.endswith("running_mean"):
                tensor.copy_(0.3 * normal(tensor))
            elif tensor.ndim == 1 and tensor.is_floating_point():
                tensor.add_(0.2 * normal(tensor))
    return model


def made_inputs(pair: Pair, count: int = 8, seed: int = 0) -> list[dict[str, Array]]:
    """Inputs that all differ."""
    return [pair.inputs(np.random.default_rng([seed, number])) for number in range(count)]


def normal(generator: np.random.Generator, *shape: int, scale: float = 1.0) -> Array:
    """Float32, zero mean."""
    return (scale * generator.standard_normal(shape)).astype(np.float32)


def ids(generator: np.random.Generator, size: int, *shape: int) -> Array:
    """Token ids below `size`, zero left out: it pads."""
    return generator.integers(1, size, shape).astype(np.int32)


def blank(cls: Any, fault: str) -> Any:
    """An nnx model whose weights are zeros: to draw them, XLA would compile for seconds."""
    import jax
    from flax import nnx

    graph, state = nnx.split(nnx.eval_shape(lambda: cls(fault, rngs=nnx.Rngs(0))))

    def zeros(leaf: Any) -> Any:
        if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.key(0)
        return jax.device_put(np.zeros(leaf.shape, leaf.dtype))

    return nnx.merge(graph, jax.tree.map(zeros, state))
