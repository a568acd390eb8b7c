"""InstanceNorm1d, 2d, 3d: weight → scale, bias unchanged; running statistics → `batch_stats`.

Flax's `InstanceNorm` can be used without running statistics (torch's default). Its epsilon is 1e-6
(torch: 1e-5); pass `use_fast_variance=False`, as for LayerNorm. With `track_running_stats`, use
`converters.modules`' InstanceNorm, which has torch's momentum.
"""

from typing import Any

from converters.layers.entry import BATCH_STATS, ForwardCase, LayerEntry, Weight
from converters.layers.flax_call import (
    DETERMINISTIC,
    Api,
    FlaxCall,
    num_features,
    ours,
    own,
    use_bias,
    use_scale,
)
from converters.layers.kinds.batch_norm import has_statistics, statistics_of
from converters.layers.layout import UNCHANGED


def _flax(layer: Any, api: Api) -> tuple[FlaxCall, ...]:
    size, tracked = num_features(api, layer.num_features), has_statistics(layer)
    calls = []
    if not tracked:
        sizes = {**size, **use_scale(layer), **use_bias(layer)}
        settings = {"epsilon": layer.eps, "use_fast_variance": False}
        calls.append(own(api, "InstanceNorm", sizes, settings=settings, channels_last=True))
    sizes = {**size, **statistics_of(layer, default=False)}
    # torch treats a momentum of None as 0: the statistics never change.
    settings = {"eps": layer.eps, "momentum": layer.momentum or 0.0}
    if api == "linen" and tracked:
        settings["use_running_average"] = DETERMINISTIC
    calls.append(ours(api, "InstanceNorm", sizes, settings=settings, channels_last=True))
    return tuple(calls)


def _entry(rank: int, sides: tuple[int, ...]) -> LayerEntry:
    def case(name: str, of: str = "", **arguments: Any) -> ForwardCase:
        def make(nn: Any) -> Any:
            return getattr(nn, f"InstanceNorm{rank}d")(4, **arguments)

        return ForwardCase(name, make, (3, 4, *sides), of)

    return LayerEntry(
        kind=f"InstanceNorm{rank}d",
        doc=__doc__ or "",
        weights=(
            Weight("weight", "scale", "scale", UNCHANGED),
            Weight("bias", "bias", "bias", UNCHANGED),
            Weight("running_mean", "mean", "mean", UNCHANGED, BATCH_STATS),
            Weight("running_var", "var", "var", UNCHANGED, BATCH_STATS),
        ),
        cases=(
            case("affine, Flax's own", affine=True),
            case("not affine, a large epsilon, Flax's own", eps=0.1),
            case("affine", "converters.modules", affine=True),
            case("running statistics", affine=True, track_running_stats=True),
        ),
        flax=_flax,
        dropped=(("num_batches_tracked", "torch's InstanceNorm does not read it"),),
    )


ENTRIES = (_entry(1, (7,)), _entry(2, (7, 5)), _entry(3, (2, 7, 5)))
