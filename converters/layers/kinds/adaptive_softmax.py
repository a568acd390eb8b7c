"""AdaptiveLogSoftmaxWithLoss: its Linear layers are converted as Linear, under their own names.

`head` and `tail_0/layers_0`, `tail_0/layers_1`, … (nnx: `tail/0/layers/0`, …) are those of the
layer of the same name in `converters.modules`; Flax has none.
"""

from typing import Any

from converters.layers.entry import ForwardCase, LayerEntry
from converters.layers.flax_call import Api, FlaxCall, changed, ours


def _flax(layer: Any, api: Api) -> tuple[FlaxCall, ...]:
    sizes = {"in_features": layer.in_features, "n_classes": layer.n_classes}
    settings = {
        "cutoffs": tuple(layer.cutoffs[:-1]),
        **changed(div_value=(layer.div_value, 4.0), head_bias=(layer.head_bias, False)),
    }
    return (ours(api, "AdaptiveLogSoftmaxWithLoss", sizes, settings=settings),)


def _case(name: str, head_bias: bool, div_value: float) -> ForwardCase:
    options = {"cutoffs": (4, 7), "div_value": div_value, "head_bias": head_bias}
    return ForwardCase(
        name,
        torch=lambda nn: nn.AdaptiveLogSoftmaxWithLoss(9, 12, **options),
        input_shape=(5, 9),
        arguments=lambda rng: {"target": rng.permutation(12)[:5]},
        torch_call=lambda layer, inputs, arguments: layer(inputs, arguments["target"]),
    )


ENTRIES = (
    LayerEntry(
        kind="AdaptiveLogSoftmaxWithLoss",
        doc=__doc__,
        weights=(),
        cases=(_case("two clusters", False, 2.0), _case("a head with bias", True, 1.5)),
        flax=_flax,
    ),
)
