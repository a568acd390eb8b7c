"""InstanceNorm1d, 2d, 3d: weight → scale, bias unchanged; running statistics → `batch_stats`.

Flax's `InstanceNorm` serves where there are no running statistics (torch's default); its epsilon is 1e-6
(torch: 1e-5) and `use_fast_variance=False` has to be passed, as for LayerNorm. With `track_running_stats`,
`converters.modules`' InstanceNorm, whose momentum is torch's.
"""

from typing import Any

from converters.layers.entry import BATCH_STATS, ForwardCase, LayerEntry, Weight, ours
from converters.layers.layout import UNCHANGED


def _note(layer: Any) -> str:
    if not layer.track_running_stats:
        return f"epsilon={layer.eps:g}, use_fast_variance=False"
    return f"converters.modules: InstanceNorm, eps={layer.eps:g}, momentum={layer.momentum:g}"


def _entry(rank: int, sides: tuple[int, ...]) -> LayerEntry:
    def torch_layer(nn: Any, **arguments: Any) -> Any:
        return getattr(nn, f"InstanceNorm{rank}d")(4, **arguments)

    def case(name: str, linen: Any, nnx: Any, **arguments: Any) -> ForwardCase:
        return ForwardCase(
            name,
            torch=lambda nn: torch_layer(nn, **arguments),
            linen=linen,
            nnx=nnx,
            input_shape=(3, 4, *sides),
            channels_last=True,
        )

    plain = {"epsilon": 1e-5, "use_fast_variance": False}
    bare = {**plain, "epsilon": 0.1, "use_scale": False, "use_bias": False}
    tracked = {"affine": True, "track_running_stats": True}
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
            case(
                "affine, Flax's own",
                lambda nn: nn.InstanceNorm(**plain),
                lambda nnx, rngs: nnx.InstanceNorm(4, rngs=rngs, **plain),
                affine=True,
            ),
            case(
                "not affine, a large epsilon, Flax's own",
                lambda nn: nn.InstanceNorm(**bare),
                lambda nnx, rngs: nnx.InstanceNorm(4, rngs=rngs, **bare),
                eps=0.1,
            ),
            case(
                "affine",
                lambda nn: ours("linen").InstanceNorm(affine=True),
                lambda nnx, rngs: ours("nnx").InstanceNorm(4, affine=True),
                affine=True,
            ),
            case(
                "running statistics",
                lambda nn: ours("linen").InstanceNorm(**tracked),
                lambda nnx, rngs: ours("nnx").InstanceNorm(4, **tracked),
                **tracked,
            ),
        ),
        dropped=(("num_batches_tracked", "torch's InstanceNorm does not read it"),),
        note=_note,
    )


ENTRIES = (_entry(1, (7,)), _entry(2, (7, 5)), _entry(3, (2, 7, 5)))
