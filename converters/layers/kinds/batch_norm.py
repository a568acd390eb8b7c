"""BatchNorm1d, 2d, 3d, SyncBatchNorm: weight → scale, running statistics → `batch_stats`.

In nnx the statistics are `BatchStat`. `num_batches_tracked` has no counterpart in Flax. Inference
with converted statistics is equal. Training with Flax's own BatchNorm is not: its momentum is 1 -
torch's (and its default 0.99). At each update torch uses the unbiased running variance and Flax the
biased one, a factor of n / (n - 1). `converters.modules`' BatchNorm has torch's momentum and
variance, momentum=None (with `num_batches_tracked` as `count`), and `axis_name` for SyncBatchNorm.
"""

from typing import Any

from converters.layers.entry import BATCH_STATS, ForwardCase, LayerEntry, Weight, Weights
from converters.layers.flax_call import (
    DETERMINISTIC,
    Api,
    FlaxCall,
    Value,
    changed,
    has,
    num_features,
    ours,
    own,
    use_bias,
    use_scale,
)
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


def _flax(layer: Any, api: Api) -> tuple[FlaxCall, ...]:
    size, tracked = num_features(api, layer.num_features), has_statistics(layer)
    # nnx uses the model's `eval()` and `train()`.
    running = {"use_running_average": DETERMINISTIC} if api == "linen" and tracked else {}
    replicas = type(layer).__name__ == "SyncBatchNorm"
    about: dict[str, Any] = {
        "channels_last": True,
        "remarks": ("axis_name of the replicas",) if replicas else (),
    }
    calls = []
    if tracked and layer.momentum is not None:
        sizes = {**size, **use_scale(layer), **use_bias(layer)}
        momentum = round(1 - layer.momentum, 12)  # 0.9, not 0.8999999999999999
        settings = {"epsilon": layer.eps, "momentum": momentum, **running}
        remarks = (*about["remarks"], f"Flax's momentum is 1 - torch's, which is {layer.momentum}")
        rest = {**about, "remarks": remarks}
        calls.append(own(api, "BatchNorm", sizes, settings=settings, **rest))
    if has(layer, "weight") == has(layer, "bias"):
        sizes = {**size, **statistics_of(layer)}
        settings = {"eps": layer.eps, "momentum": layer.momentum, **running}
        calls.append(ours(api, "BatchNorm", sizes, settings=settings, **about))
    return tuple(calls)


def has_statistics(layer: Any) -> bool:
    """Whether a norm keeps running statistics."""
    return layer.running_mean is not None


def statistics_of(layer: Any, default: bool = True) -> dict[str, Value]:
    """Return the arguments of the norms in `converters.modules` that the weights determine."""
    return changed(
        affine=(has(layer, "weight"), default),
        track_running_stats=(has_statistics(layer), default),
    )


def _entry(kind: str, sides: tuple[int, ...]) -> LayerEntry:
    def case(name: str, of: str = "", **arguments: Any) -> ForwardCase:
        shape = (3, 4, *sides)
        return ForwardCase(name, lambda nn: getattr(nn, kind)(4, **arguments), shape, of)

    return LayerEntry(
        kind=kind,
        doc=__doc__ or "",
        weights=_weights,
        cases=(
            case("running statistics"),
            case("not affine, a large epsilon", affine=False, eps=0.1),
            case("with torch's momentum and variance", "converters.modules", momentum=0.3),
            case("the mean over all batches", momentum=None),
            case("without running statistics", track_running_stats=False),
        ),
        flax=_flax,
        dropped=(
            ("num_batches_tracked", "only torch's momentum=None reads it; Flax has no counterpart"),
        ),
    )


ENTRIES = (
    _entry("BatchNorm1d", (7,)),
    _entry("BatchNorm2d", (7, 5)),
    _entry("BatchNorm3d", (2, 7, 5)),
    _entry("SyncBatchNorm", (7, 5)),
)
