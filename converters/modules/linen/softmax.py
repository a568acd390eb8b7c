"""`torch.nn.AdaptiveLogSoftmaxWithLoss` as a linen module."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from flax import linen as nn
from jax import Array

from converters.modules.functional.softmax import adaptive_log_prob, target_log_prob


class AdaptiveLogSoftmaxWithLoss(nn.Module):
    """torch's adaptive softmax: rare classes in clusters, whose inner size shrinks by div_value.

    Attributes:
        in_features: features of the input.
        n_classes: number of classes, the frequent ones first.
        cutoffs: the first class of each cluster of rarer classes, without n_classes.
        div_value: ratio of the inner features of consecutive clusters.
        head_bias: whether the head has a bias.
    """

    in_features: int
    n_classes: int
    cutoffs: Sequence[int]
    div_value: float = 4.0
    head_bias: bool = False

    def setup(self) -> None:
        """Create the head and the clusters, under torch's names."""
        ends = (*self.cutoffs[1:], self.n_classes)
        self.head = nn.Dense(self.cutoffs[0] + len(self.cutoffs), use_bias=self.head_bias)
        self.tail = [
            nn.Sequential(
                [
                    nn.Dense(int(self.in_features // self.div_value ** (i + 1)), use_bias=False),
                    nn.Dense(end - start, use_bias=False),
                ]
            )
            for i, (start, end) in enumerate(zip(self.cutoffs, ends, strict=True))
        ]

    def log_prob(self, inputs: Array) -> Array:
        """Return log probabilities of all classes, (batch, classes)."""
        tails = [partial(cluster, inputs) for cluster in self.tail]
        return adaptive_log_prob(self.head(inputs), tails, self.cutoffs)

    def __call__(self, inputs: Array, target: Array) -> tuple[Array, Array]:
        """Return the targets' log probabilities and the loss: torch's `output` and `loss`."""
        return target_log_prob(self.log_prob(inputs), target)
