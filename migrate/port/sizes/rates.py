"""Shares that both sides keep by chance in training, which no output in evaluation shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from migrate.port.nnx_model import NnxPort
from migrate.port.sizes.flax import PortAtSize
from migrate.port.sizes.instance import SizedModel, as_tensors, quiet

# (share that is kept, elements of the mask) → how many such masks one pass draws.
Kept = Counter[tuple[float, int]]
_DIGITS = 6


class _Masks(TorchDispatchMode):
    """Notes the masks that torch draws.

    Attributes:
        kept: the masks.
        other: whether something else is drawn, which says nothing about a share.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kept: Kept = Counter()
        self.other = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags:
            name = func.overloadpacket.__name__.rstrip("_")
            share = args[1] if len(args) > 1 else kwargs.get("p")
            if name == "native_dropout" and isinstance(share, float):
                _note(self.kept, 1 - share, args[0].numel())
            elif name == "bernoulli" and isinstance(share, float):
                _note(self.kept, share, args[0].numel())
            else:
                self.other = True
        return func(*args, **kwargs)


def _note(kept: Kept, share: float, count: int) -> None:
    kept[round(float(share), _DIGITS), int(count)] += 1


def kept_by_original(instance: SizedModel) -> Kept | None:
    """The masks that the original draws in training; None if it draws in a way that shows no share."""
    masks = _Masks()
    module = instance.module
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    try:
        with quiet(), torch.random.fork_rng(devices=[]), torch.no_grad(), masks:
            module.train()(**as_tensors(instance.inputs))
    except Exception:  # whatever a forward in training raises
        return None
    finally:
        module.eval()
        module.load_state_dict(state)
    return None if masks.other else masks.kept


def kept_by_port(there: PortAtSize) -> Kept | None:
    """The masks that the port draws in training; nothing is computed. None for an nnx model."""
    import jax

    if isinstance(there.model, NnxPort):
        return None
    kept: Kept = Counter()
    with there.refusing(), _noted(kept):
        apply = partial(there.apply, deterministic=False, mutable=True)
        inputs = {n: jax.ShapeDtypeStruct(a.shape, a.dtype) for n, a in there.inputs.items()}
        jax.eval_shape(lambda v, i: apply(v, **i), there.variables(there.weights()), inputs)
    return kept


@contextmanager
def _noted(kept: Kept) -> Iterator[None]:
    """Note the masks of `jax.random.bernoulli`."""
    import jax

    plain = jax.random.bernoulli

    def bernoulli(key: Any, p: Any = 0.5, shape: Any = None, **named: Any) -> Any:
        _note(kept, p, int(np.prod(np.shape(p) if shape is None else shape)))
        return plain(key, p, shape, **named)

    jax.random.bernoulli = bernoulli
    try:
        yield
    finally:
        jax.random.bernoulli = plain


def same(theirs: Mapping[Any, int], mine: Mapping[Any, int], *, scanned: bool) -> bool:
    """Whether both sides keep the same shares. A scan of layers draws all its masks by one call."""
    return set(theirs) == set(mine) if scanned else theirs == mine
