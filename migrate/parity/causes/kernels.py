"""Kernels made for another layer of the same kind: rows in another order, an update on one side only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from migrate.parity.causes.frame.changes import several, weight
from migrate.parity.causes.frame.pattern import Array, FaultExample, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Scene

# A head has at least so many features, and is not wider than that.
SMALLEST, WIDEST = 4, 512
# The singular values of an update stand out from those of rounding by this factor.
GAP = 20.0


def _in_halves(width: int) -> torch.Tensor:
    """Order that puts features of neighbors into halves: 0, 2, 4, …, 1, 3, 5, …"""
    return torch.arange(width).reshape(-1, 2).T.flatten()


def _as_neighbors(width: int) -> torch.Tensor:
    return torch.arange(width).reshape(2, -1).T.flatten()


def _exchanged(width: int) -> torch.Tensor:
    return torch.arange(width).roll(width // 2)


ORDERS = {
    "in the order of halves, the truth's in that of neighbors": _in_halves,
    "in the order of neighbors, the truth's in that of halves": _as_neighbors,
    "with the halves of each head exchanged": _exchanged,
}


def _projection() -> nn.Module:
    return nn.Linear(12, 32)


def _reordered_twin(order: str, twin: nn.Module) -> nn.Module:
    for name in ("weight", "bias"):
        tensor = getattr(twin, name)
        tensor.data = _reordered(ORDERS[order], 8, tensor.data)
    return twin


class RotaryRows(Pattern):
    """The rows of a query's or key's kernel are in the order of the other rotary layout.

    **What it is.** Rotary positions turn feature i of a head with feature i + d/2, or neighbors. Converters
    of checkpoints reorder the rows of both kernels for that. Where this was not done, done twice, or done for
    code of the other kind, the outputs of the layer are the right numbers in the wrong places.

    **What to do.** Reorder the rows of the query's and the key's kernels, and of their biases, or turn them
    the other way (see rotary-layout).
    """

    name = "rotary-rows"
    rank = 1
    examples = tuple(
        FaultExample(_projection, partial(_reordered_twin, order), normal(6, 12), order)
        for order in ORDERS
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the rows in each of the orders, in heads of each width that divides their number."""
        module = scene.target
        if not isinstance(module, nn.Linear):
            return
        names = [name for name, _ in module.named_parameters(recurse=False)]
        for width in _widths(module.out_features):
            for words, order in ORDERS.items():
                change = partial(
                    _rows_changed, module, tuple(names), partial(_reordered, order, width)
                )
                yield Variant(
                    f"the rows of {scene.name or 'the layer'}'s kernel are {words} in {{side}} "
                    f"(heads of {width})",
                    change,
                )


def _widths(rows: int) -> Iterator[int]:
    """Yield the even widths of a head, the usual widths first."""
    widths = [width for width in range(SMALLEST, min(rows, WIDEST) + 1, 2) if rows % width == 0]
    yield from sorted(widths, key=lambda width: (width & (width - 1) != 0, -width))


def _rows_changed(module: nn.Module, names: tuple[str, ...], change: Any) -> Any:
    return several(weight(module, name, change) for name in names)


def _reordered(order: Any, width: int, tensor: torch.Tensor) -> torch.Tensor:
    heads = tensor.reshape(-1, width, *tensor.shape[1:])
    return heads[:, order(width)].reshape(tensor.shape)


def _linear() -> nn.Module:
    return nn.Linear(24, 32)


def _embedding() -> nn.Module:
    return nn.Embedding(40, 24)


def _updated(twin: nn.Module) -> nn.Module:
    weight = twin.get_parameter("weight")
    rows, columns = weight.shape
    down, up = torch.randn(2, columns), torch.randn(rows, 2)
    weight.data = weight.data + 0.05 * (up @ down).to(weight.dtype)
    return twin


def _tokens() -> tuple[torch.Tensor, ...]:
    return (torch.randint(40, (4, 16)),)


class LowRankUpdate(Pattern):
    """A kernel, or an embedding, differs by a matrix of low rank.

    **What it is.** LoRA adds the product of two thin matrices to a weight. It was merged into the weights of
    one side only, was merged twice, or with another scale (`alpha / r`, `alpha / sqrt(r)`).

    **What to do.** Merge the adapter before the weights are converted (`model.merge_and_unload()`), or load
    both sides from the base checkpoint.
    """

    name = "low-rank-update"
    rank = 3
    examples = (
        FaultExample(_linear, _updated, normal(4, 20, 24), "a matrix of low rank"),
        FaultExample(_embedding, _updated, _tokens, "a matrix of low rank"),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the layer with the part of the difference that has a low rank."""
        module = scene.target
        if not isinstance(module, nn.Linear | nn.Embedding):
            return
        kind = "embedding" if isinstance(module, nn.Embedding) else "kernel"
        text = (
            f"the {kind} of {scene.name or 'the layer'} differs in {{side}} by a matrix of low rank: a LoRA "
            "that is merged on one side only, or with another scale"
        )
        yield Variant(text, adjust=partial(_with_update, min(module.weight.shape)))


def _with_update(smaller: int, output: Array, mine: Array) -> Array | None:
    """Add to `output` the difference from `mine`, as far as its rank is low; None if it is not."""
    if output.shape != mine.shape or not np.isfinite(mine).all() or mine.ndim < 2:
        return None
    difference = (mine - output).reshape(-1, mine.shape[-1])
    lengths = np.linalg.norm(difference, axis=1)
    if np.mean(lengths > 1e-3 * lengths.max(initial=0.0)) < 0.8:
        return None  # only some rows differ: the layer's inputs differ, not its weights
    u, values, v = np.linalg.svd(difference, full_matrices=False)
    most = min(len(difference), smaller) // 4
    if most < 1 or len(values) <= most:
        return None
    ratios = values[:most] / np.maximum(values[1 : most + 1], np.finfo(np.float64).tiny)
    rank = int(np.argmax(ratios)) + 1
    if ratios[rank - 1] < GAP or np.allclose(difference, difference[0], atol=1e-3 * lengths.max()):
        return None
    update = (u[:, :rank] * values[:rank]) @ v[:rank]
    return output + update.reshape(output.shape)
