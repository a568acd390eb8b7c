"""BatchNorm1d, 2d, 3d: weight → scale, running statistics → `batch_stats` (nnx: `BatchStat`).

`num_batches_tracked` has no counterpart. Flax's momentum is 1 - torch's (and its default 0.99), and
in training the two differ: torch keeps the unbiased running variance, Flax the biased one, a factor
of n / (n - 1) at each update. Inference from converted statistics is equal.
"""

from typing import Any

from converters.layers.entry import BATCH_STATS, ForwardCase, LayerEntry, Weight
from converters.layers.layout import UNCHANGED


def _note(layer: Any) -> str:
    if layer.momentum is None:
        return f"epsilon={layer.eps:g}; torch averages over all batches, which Flax cannot"
    return f"epsilon={layer.eps:g}, momentum={1 - layer.momentum:g}"


def _entry(rank: int, input_sides: tuple[int, ...]) -> LayerEntry:
    def torch_layer(nn: Any, **arguments: Any) -> Any:
        return getattr(nn, f"BatchNorm{rank}d")(4, **arguments)

    shape = (3, 4, *input_sides)
    return LayerEntry(
        kind=f"BatchNorm{rank}d",
        doc=__doc__ or "",
        weights=(
            Weight("weight", "scale", "scale", UNCHANGED),
            Weight("bias", "bias", "bias", UNCHANGED),
            Weight("running_mean", "mean", "mean", UNCHANGED, BATCH_STATS),
            Weight("running_var", "var", "var", UNCHANGED, BATCH_STATS),
        ),
        cases=(
            ForwardCase(
                "running statistics",
                torch=torch_layer,
                linen=lambda nn: nn.BatchNorm(use_running_average=True, epsilon=1e-5),
                nnx=lambda nnx, rngs: nnx.BatchNorm(
                    4, use_running_average=True, epsilon=1e-5, rngs=rngs
                ),
                input_shape=shape,
                channels_last=True,
            ),
            ForwardCase(
                "not affine, a large epsilon",
                torch=lambda nn: torch_layer(nn, affine=False, eps=0.1),
                linen=lambda nn: nn.BatchNorm(
                    use_running_average=True, epsilon=0.1, use_bias=False, use_scale=False
                ),
                nnx=lambda nnx, rngs: nnx.BatchNorm(
                    4,
                    use_running_average=True,
                    epsilon=0.1,
                    use_bias=False,
                    use_scale=False,
                    rngs=rngs,
                ),
                input_shape=shape,
                channels_last=True,
            ),
        ),
        dropped=(
            ("num_batches_tracked", "only torch's momentum=None reads it; Flax has no counterpart"),
        ),
        note=_note,
    )


ENTRIES = (_entry(1, (7,)), _entry(2, (7, 5)), _entry(3, (2, 7, 5)))
