"""RNN, LSTM, GRU and their cells: `weight_ih_l0` (gates * hidden, in) → `input_kernel_l0`, transposed.

`weight_hh` → `hidden_kernel`, `weight_hr` (proj_size) → `projection_kernel`, both biases unchanged
as `input_bias` and `hidden_bias`; `_l1`, `_reverse` and so on stay. Gates are adjacent in torch's
order (LSTM: i, f, g, o; GRU: r, z, n), so that a step is two products.

These are the weights of `converters.modules`' RNN, LSTM and GRU. They have torch's arguments, the
states in torch's order, (h, c), and `lengths` for packed sequences. Flax's own cells have one bias
where torch has two. nnx's GRUCell lacks the hidden product's bias, so it cannot represent torch's
GRU (error 0.2). To use Flax's LSTMCell, split the kernels into gates and add the biases: its
`hi/bias` is torch's b_ii + b_hi.
"""

from collections.abc import Callable
from typing import Any

from converters.layers.entry import ForwardCase, LayerEntry, Weight, Weights
from converters.layers.flax_call import DETERMINISTIC, Api, FlaxCall, Value, changed, ours
from converters.layers.layout import UNCHANGED, Layout, Permute

_NAMES: tuple[tuple[str, str, Layout], ...] = (
    ("weight_ih", "input_kernel", Permute((1, 0))),
    ("weight_hh", "hidden_kernel", Permute((1, 0))),
    ("bias_ih", "input_bias", UNCHANGED),
    ("bias_hh", "hidden_bias", UNCHANGED),
    ("weight_hr", "projection_kernel", Permute((1, 0))),
)


def _stack_weights(layer: Any) -> Weights:
    directions = ("", "_reverse") if layer.bidirectional else ("",)
    suffixes = [f"_l{number}{end}" for number in range(layer.num_layers) for end in directions]
    return tuple(
        Weight(torch_name + suffix, name + suffix, name + suffix, layout)
        for suffix in suffixes
        for torch_name, name, layout in _NAMES
    )


_Flax = Callable[[Any, Api], tuple[FlaxCall, ...]]


def _sizes(layer: Any, api: Api) -> dict[str, Value]:
    """Return the sizes that stacks and cells share."""
    inputs = {"input_size": layer.input_size} if api == "nnx" else {}
    return {**inputs, "hidden_size": layer.hidden_size, **changed(bias=(layer.bias, True))}


def _stack_flax(kind: str) -> _Flax:
    def flax(layer: Any, api: Api) -> tuple[FlaxCall, ...]:
        sizes = {
            **_sizes(layer, api),
            **changed(
                num_layers=(layer.num_layers, 1),
                bidirectional=(layer.bidirectional, False),
                proj_size=(layer.proj_size, 0),
            ),
        }
        settings = changed(
            batch_first=(layer.batch_first, False),
            dropout=(layer.dropout, 0.0),
            nonlinearity=("relu" if layer.mode == "RNN_RELU" else "tanh", "tanh"),
        )
        # nnx's dropout uses the model's `eval()` and `train()`.
        drops = api == "linen" and layer.dropout
        options = {"deterministic": DETERMINISTIC} if drops else {}
        return (ours(api, kind, sizes, settings=settings, options=options),)

    return flax


def _cell_flax(kind: str) -> _Flax:
    def flax(layer: Any, api: Api) -> tuple[FlaxCall, ...]:
        settings = changed(nonlinearity=(getattr(layer, "nonlinearity", "tanh"), "tanh"))
        return (ours(api, kind, _sizes(layer, api), settings=settings),)

    return flax


def _state(name: str, *shapes: tuple[int, ...]) -> Any:
    def arguments(rng: Any) -> dict[str, Any]:
        states = tuple(rng.standard_normal(shape).astype("float32") for shape in shapes)
        return {name: states if len(states) > 1 else states[0]}

    return arguments


def _nothing(rng: Any) -> dict[str, Any]:
    return {}


def _case(kind: str, name: str, shape: tuple[int, ...] = (7, 2, 5), **options: Any) -> ForwardCase:
    """Create a case with five features in and three hidden; batched inputs also get initial states."""
    layers, both = options.get("num_layers", 1), options.get("bidirectional", False)
    rows = layers * (1 + both)
    projected = options.get("proj_size", 0)
    states = [(rows, 2, projected or 3), (rows, 2, 3)][: 2 if kind == "LSTM" else 1]
    return ForwardCase(
        name,
        torch=lambda nn: getattr(nn, kind)(5, 3, **options),
        input_shape=shape,
        arguments=_state("hx", *states) if len(shape) == 3 else _nothing,
    )


def _packed_call(layer: Any, inputs: Any, arguments: Any) -> Any:
    from torch.nn.utils import rnn

    packed = rnn.pack_padded_sequence(inputs, arguments["lengths"], enforce_sorted=False)
    outputs, states = layer(packed)
    return rnn.pad_packed_sequence(outputs, total_length=len(inputs))[0], states


def _packed(kind: str) -> ForwardCase:
    options: dict[str, Any] = {"num_layers": 2, "bidirectional": True}
    return ForwardCase(
        "packed sequences",
        torch=lambda nn: getattr(nn, kind)(5, 3, **options),
        input_shape=(7, 4, 5),
        arguments=lambda rng: {"lengths": rng.permutation([3, 7, 1, 5])},
        torch_call=_packed_call,
    )


def _cell_case(kind: str, name: str, **options: Any) -> ForwardCase:
    states = [(2, 3), (2, 3)][: 2 if kind == "LSTMCell" else 1]
    return ForwardCase(
        name,
        torch=lambda nn: getattr(nn, kind)(5, 3, **options),
        input_shape=(2, 5),
        arguments=_state("hx", *states),
    )


def _stacked(kind: str, *cases: ForwardCase) -> LayerEntry:
    common = (
        _case(kind, "one layer"),
        _case(
            kind,
            "two layers, two directions, dropout",
            num_layers=2,
            bidirectional=True,
            dropout=0.1,
        ),
        _case(kind, "batch first, without bias", (2, 7, 5), batch_first=True, bias=False),
        _case(kind, "without a batch", (7, 5)),
        _packed(kind),
    )
    return LayerEntry(kind, __doc__ or "", _stack_weights, common + cases, _stack_flax(kind))


def _cell(kind: str, *cases: ForwardCase) -> LayerEntry:
    weights = tuple(
        Weight(torch_name, name, name, layout) for torch_name, name, layout in _NAMES[:4]
    )
    common = (_cell_case(kind, "one step"), _cell_case(kind, "without bias", bias=False))
    return LayerEntry(kind, __doc__ or "", weights, common + cases, _cell_flax(kind))


_PROJECTED: dict[str, Any] = {"num_layers": 2, "bidirectional": True, "proj_size": 2}

ENTRIES = (
    _stacked("RNN", _case("RNN", "relu", nonlinearity="relu")),
    _stacked("LSTM", _case("LSTM", "proj_size", **_PROJECTED)),
    _stacked("GRU"),
    _cell("RNNCell", _cell_case("RNNCell", "relu", nonlinearity="relu")),
    _cell("LSTMCell"),
    _cell("GRUCell"),
)
