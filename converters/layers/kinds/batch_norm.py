"""BatchNorm1d, 2d, 3d, SyncBatchNorm: weight → scale, running statistics → `batch_stats`.

In nnx these are `BatchStat`. `num_batches_tracked` has no counterpart in Flax. Inference from converted
statistics is equal. Training with Flax's own BatchNorm is not: its momentum is 1 - torch's (and its default
0.99), and torch keeps the unbiased running variance, Flax the biased one, a factor of n / (n - 1) at each
update. `converters.modules`' BatchNorm has torch's momentum and variance, momentum=None (with
`num_batches_tracked` as `count`), and `axis_name` for SyncBatchNorm.
"""

from typing import Any

from converters.layers.entry import BATCH_STATS, ForwardCase, LayerEntry, Weight, Weights, ours
from converters.layers.layout import UNCHANGED

_WEIGHTS = (
    Weight("weight", "scale", "scale", UNCHANGED),
    Weight("bias", "bias", "bias", UNCHANGED),
    Weight("running_mean", "mean", "mean", UNCHANGED, BATCH_STATS),
    Weight("running_var", "var", "var", UNCHANGED, BATCH_STATS),
)
_COUNT = Weight("num_batches_tracked", "count", "count", UNCHANGED, BATCH_STATS)


def _weights(layer: Any) -> Weights:
    # Only the plain mean over all batches depends on their number.
    return _WEIGHTS if layer.momentum is not None else (*_WEIGHTS, _COUNT)


def _note(layer: Any) -> str:
    if layer.momentum is None:
        told = f"converters.modules: BatchNorm, eps={layer.eps:g}, momentum=None"
    else:
        told = f"epsilon={layer.eps:g}, momentum={1 - layer.momentum:g}"
    if type(layer).__name__ == "SyncBatchNorm":
        return f"{told}, axis_name of the replicas"
    return told


def _entry(kind: str, sides: tuple[int, ...]) -> LayerEntry:
    def case(name: str, linen: Any, nnx: Any, **arguments: Any) -> ForwardCase:
        return ForwardCase(
            name,
            torch=lambda nn: getattr(nn, kind)(4, **arguments),
            linen=linen,
            nnx=nnx,
            input_shape=(3, 4, *sides),
            channels_last=True,
        )

    plain = {"use_running_average": True, "epsilon": 1e-5}
    bare = {**plain, "epsilon": 0.1, "use_bias": False, "use_scale": False}
    return LayerEntry(
        kind=kind,
        doc=__doc__ or "",
        weights=_weights,
        cases=(
            case(
                "running statistics",
                lambda nn: nn.BatchNorm(**plain),
                lambda nnx, rngs: nnx.BatchNorm(4, rngs=rngs, **plain),
            ),
            case(
                "not affine, a large epsilon",
                lambda nn: nn.BatchNorm(**bare),
                lambda nnx, rngs: nnx.BatchNorm(4, rngs=rngs, **bare),
                affine=False,
                eps=0.1,
            ),
            case(
                "the mean over all batches",
                lambda nn: ours("linen").BatchNorm(momentum=None, use_running_average=True),
                lambda nnx, rngs: ours("nnx").BatchNorm(4, momentum=None),
                momentum=None,
            ),
            case(
                "without running statistics",
                lambda nn: ours("linen").BatchNorm(track_running_stats=False),
                lambda nnx, rngs: ours("nnx").BatchNorm(4, track_running_stats=False),
                track_running_stats=False,
            ),
        ),
        dropped=(
            ("num_batches_tracked", "only torch's momentum=None reads it; Flax has no counterpart"),
        ),
        note=_note,
    )


ENTRIES = (
    _entry("BatchNorm1d", (7,)),
    _entry("BatchNorm2d", (7, 5)),
    _entry("BatchNorm3d", (2, 7, 5)),
    _entry("SyncBatchNorm", (7, 5)),
)
