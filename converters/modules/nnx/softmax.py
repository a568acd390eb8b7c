"""`torch.nn.AdaptiveLogSoftmaxWithLoss` as an nnx module."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from flax import nnx
from jax import Array

from converters.modules.functional.softmax import adaptive_log_prob, target_log_prob


class AdaptiveLogSoftmaxWithLoss(nnx.Module):
    """torch's adaptive softmax: rare classes in clusters, whose inner size shrinks by div_value.

    Args:
        in_features: features of the input.
        n_classes: number of classes, the frequent ones first.
        cutoffs: the first class of each cluster of rarer classes, without n_classes.
        div_value: ratio of the inner features of consecutive clusters.
        head_bias: whether the head has a bias.
        rngs: for the weights.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        *,
        div_value: float = 4.0,
        head_bias: bool = False,
        rngs: nnx.Rngs,
    ) -> None:
        self.cutoffs = tuple(cutoffs)
        ends = (*cutoffs[1:], n_classes)
        wide = cutoffs[0] + len(cutoffs)
        self.head = nnx.Linear(in_features, wide, use_bias=head_bias, rngs=rngs)
        tail = []
        for i, (start, end) in enumerate(zip(cutoffs, ends, strict=True)):
            inner = int(in_features // div_value ** (i + 1))
            tail.append(
                nnx.Sequential(
                    nnx.Linear(in_features, inner, use_bias=False, rngs=rngs),
                    nnx.Linear(inner, end - start, use_bias=False, rngs=rngs),
                )
            )
        self.tail = nnx.List(tail)

    def log_prob(self, inputs: Array) -> Array:
        """Return log probabilities of all classes, (batch, classes)."""
        tails = [partial(cluster, inputs) for cluster in self.tail]
        return adaptive_log_prob(self.head(inputs), tails, self.cutoffs)

    def __call__(self, inputs: Array, target: Array) -> tuple[Array, Array]:
        """Return the targets' log probabilities and the loss: torch's `output` and `loss`."""
        return target_log_prob(self.log_prob(inputs), target)
