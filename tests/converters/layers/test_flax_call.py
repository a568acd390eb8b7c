"""What the entries say of Flax, as data: it is the source that was proven, and no class goes unproven."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from converters.layers import entries, flax_calls
from converters.layers.entry import ForwardCase
from converters.layers.flax_call import (
    DETERMINISTIC,
    RNGS,
    FlaxCall,
    Maker,
    Name,
    SourceCall,
    Variable,
    imports_of,
    written,
)
from converters.layers.reparametrized_cases import COMPUTED, EXACT
from tests.converters.layers.forward import built, call_of, compare_forward

APIS = ["linen", "nnx"]
KINDS = pytest.mark.parametrize("entry", list(entries().values()), ids=lambda entry: entry.kind)
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")


class Recorder:
    """A module of which every function gives the call that was made."""

    def __init__(self, name):
        self.name = name

    def __getattr__(self, name):
        return lambda *first, **named: SourceCall(f"{self.name}.{name}", named, first)


def evaluated(source, api, **names):
    modules = {
        "nn": Recorder("flax.linen"),
        "nnx": Recorder("flax.nnx"),
        "modules": Recorder(f"converters.modules.{api}"),
        "jnp": Recorder("jax.numpy"),
    }
    return recorded(
        eval(source, {**modules, "rngs": RNGS, "deterministic": DETERMINISTIC, **names})
    )


def recorded(value):
    """The value with what makes a call in the place of a function that makes it."""
    if isinstance(value, SourceCall):
        named = {name: recorded(part) for name, part in value.named.items()}
        return SourceCall(value.of, named, tuple(map(recorded, value.first)))
    if isinstance(value, tuple):
        return tuple(map(recorded, value))
    return Maker(recorded(value())) if callable(value) else value


CASES = [
    *(
        pytest.param(case, id=f"{entry.kind}: {case.name}")
        for entry in entries().values()
        for case in entry.cases
    ),
    *(pytest.param(case, id=case.name) for case in (*EXACT, *COMPUTED)),
]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("case", CASES)
def test_the_source_gives_the_same_class_and_arguments(case, api):
    calls = flax_calls(case.torch(nn), api)
    assert calls
    for call in calls:
        assert evaluated(call.source(), api) == call.construction
        named = evaluated(call.source(name="block"), api)
        assert named == SourceCall(call.of, {**call.construction.named, "name": "block"})
        layer = SimpleNamespace(of=lambda x, **options: (x, options))
        applied = evaluated(call.applied("layer.of", "x"), api, layer=layer, x=Variable("x"))
        x = Variable("x")
        for step in call.before:
            x = SourceCall(step.of, step.named, (x, *step.first))
        assert applied == (x, dict(call.options))


@KINDS
def test_every_class_is_proven_by_a_case(entry):
    for api in APIS:
        layers = [case.torch(nn) for case in entry.cases]
        offered = {call.of for layer in layers for call in entry.flax(layer, api)}
        proven = {
            call_of(case, layer, api).of for case, layer in zip(entry.cases, layers, strict=True)
        }
        assert offered == proven


def test_the_imports_are_those_that_it_needs():
    padded = nn.Conv2d(6, 4, 3, padding=1, padding_mode="circular")
    (call,) = flax_calls(padded, "linen")
    assert call.imports == ("from flax import linen as nn", "import jax.numpy as jnp")
    normed = parametrizations.weight_norm(nn.Linear(2, 3))
    (call,) = flax_calls(normed, "nnx")
    assert call.imports == (
        "from converters.modules import nnx as modules",
        "from flax import nnx",
    )
    assert call.source() == (
        "modules.WeightNorm(layer=nnx.Linear(in_features=2, out_features=3, rngs=rngs))"
    )


@pytest.mark.parametrize(
    ("layer", "api", "note"),
    [
        (nn.Linear(2, 3), "linen", ""),
        (nn.Linear(2, 3), "nnx", ""),
        (nn.GRU(2, 3, batch_first=True), "linen", "converters.modules: GRU, batch_first=True"),
        (
            nn.BatchNorm1d(4),
            "linen",
            "epsilon=1e-05, momentum=0.9; Flax's momentum is 1 - torch's, which is 0.1",
        ),
        (
            nn.BatchNorm1d(4, track_running_stats=False),
            "nnx",
            "converters.modules: BatchNorm, eps=1e-05, momentum=0.1",
        ),
        (
            nn.SyncBatchNorm(4, momentum=None),
            "nnx",
            "converters.modules: BatchNorm, eps=1e-05, momentum=None; axis_name of the replicas",
        ),
        (
            nn.Conv2d(2, 3, 5, padding=2, stride=(1, 2)),
            "nnx",
            "padding=((2, 2), (2, 2)), strides=(1, 2)",
        ),
        (
            nn.Conv1d(2, 3, 5, padding=(2,), padding_mode="reflect"),
            "linen",
            "jnp.pad(x, ((0, 0), (2, 2), (0, 0)), mode='reflect') first, padding='VALID'",
        ),
        (
            nn.Conv1d(2, 3, 4, padding="same", padding_mode="circular"),
            "linen",
            "jnp.pad(x, ((0, 0), (1, 2), (0, 0)), mode='wrap') first, padding='VALID'",
        ),
        (
            nn.ConvTranspose1d(4, 6, 3, stride=2, groups=2),
            "linen",
            "converters.modules: ConvTranspose, strides=(2,), groups=2",
        ),
        (
            nn.MultiheadAttention(4, 2),
            "linen",
            "num_heads=2; torch's boolean masks mean the opposite of Flax's, whose inputs are batch first",
        ),
        (
            nn.MultiheadAttention(4, 2, batch_first=True, add_zero_attn=True),
            "linen",
            "converters.modules: MultiheadAttention, num_heads=2, add_zero_attn=True, batch_first=True",
        ),
        (
            nn.Embedding(3, 2, padding_idx=0, max_norm=1.0),
            "nnx",
            "padding_idx=0 has no Flax form: mask its gradient yourself; "
            "max_norm=1.0 has no Flax form: the forward pass differs",
        ),
        (
            nn.LayerNorm((2, 3)),
            "nnx",
            "converters.modules: LayerNorm, eps=1e-05",
        ),
    ],
    ids=str,
)
def test_the_note_tells_what_the_weights_do_not_show(layer, api, note):
    assert entries()[type(layer).__name__].note(layer, api) == note


def test_values_as_source():
    assert written(((2, 2),)) == "((2, 2),)"
    dtype, init = (
        Name("jax.numpy.bfloat16"),
        SourceCall("flax.linen.initializers.constant", {}, (0.25,)),
    )
    (call,) = flax_calls(nn.Linear(2, 3), "linen")
    assert call.source(dtype=dtype, bias_init=init, name="head") == (
        "nn.Dense(features=3, dtype=jnp.bfloat16, bias_init=nn.initializers.constant(0.25), name='head')"
    )
    assert imports_of(dtype, init) == ("from flax import linen as nn", "import jax.numpy as jnp")


def test_a_layer_is_built_in_each_api():
    from flax import linen, nnx

    layer = nn.LayerNorm(5, eps=0.1)
    (call,) = flax_calls(layer, "linen")
    assert built(call) == linen.LayerNorm(epsilon=0.1, use_fast_variance=False)
    (call,) = flax_calls(layer, "nnx")
    made = built(call, nnx.Rngs(0))
    assert (type(made), made.epsilon, made.use_fast_variance) == (nnx.LayerNorm, 0.1, False)


@pytest.mark.parametrize(
    "wrong", [{"before": ()}, {"settings": {"padding": "SAME"}}], ids=["no pad", "padded twice"]
)
def test_what_is_wrong_around_the_call_is_caught(wrong):
    entry = entries()["Conv2d"]
    case = next(case for case in entry.cases if case.name == "padding_mode reflect")

    def planted(layer, api):
        (call,) = entry.flax(layer, api)
        settings = {**call.settings, **wrong.get("settings", {})}
        return (dataclasses.replace(call, **{**wrong, "settings": settings}),)

    comparison = compare_forward(dataclasses.replace(entry, flax=planted), case)
    assert comparison.misfits == ()
    assert min(comparison.errors.values()) > 0.1


class Bare(nn.Linear):
    """Without what torch's own constructor sets."""

    def __init__(self):
        nn.Module.__init__(self)
        self.weight = nn.Parameter(torch.ones(3, 2))
        self.bias = None


def test_a_subclass_without_torchs_attributes_has_no_call():
    assert flax_calls(Bare(), "linen") == ()
    assert entries()["Linear"].note(Bare(), "linen") == ""


def test_what_has_no_counterpart_has_no_call():
    assert flax_calls(nn.ReLU(), "linen") == ()
    odd = nn.TransformerEncoderLayer(12, 3, activation=torch.nn.functional.silu)
    assert flax_calls(odd, "linen") == ()
    assert flax_calls(nn.TransformerEncoder(odd, 1, enable_nested_tensor=False), "nnx") == ()


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("norm1", nn.LayerNorm(12, eps=0.1)),
        ("norm2", nn.LayerNorm(12, bias=False)),
        ("norm2", nn.RMSNorm(12)),
        ("dropout1", nn.Dropout(0.5)),
        ("linear1", nn.Linear(12, 7)),
        ("self_attn", nn.MultiheadAttention(12, 3, add_zero_attn=True)),
        ("self_attn", nn.Identity()),
    ],
)
def test_a_transformer_with_another_part_has_no_call(name, other):
    plain = nn.TransformerEncoderLayer(12, 3, dim_feedforward=8)
    stack = nn.TransformerEncoder(plain, 2, enable_nested_tensor=False)
    assert len(flax_calls(stack, "nnx")) == 1
    setattr(stack.layers[1], name, other)
    assert flax_calls(stack, "nnx") == ()


def test_a_transformer_of_another_norm_at_the_end_has_no_call():
    whole = nn.Transformer(12, 4, 1, 1, dim_feedforward=8, batch_first=True)
    assert len(flax_calls(whole, "linen")) == 1
    whole.decoder.norm = nn.LayerNorm(12, eps=0.1)
    assert flax_calls(whole, "linen") == ()
    whole.decoder.norm = None
    assert flax_calls(whole, "linen") == ()


def test_what_is_computed_in_two_ways_has_no_call():
    layer = parametrizations.weight_norm(nn.LSTM(2, 3), "weight_hh_l0")
    assert len(flax_calls(layer, "linen")) == 1
    assert flax_calls(parametrizations.spectral_norm(layer, "weight_ih_l0"), "linen") == ()
    outer = nn.TransformerEncoderLayer(12, 3)
    parametrizations.weight_norm(outer.linear1)
    assert flax_calls(outer, "linen") == ()


def test_a_case_names_the_class_that_it_is_of():
    case = ForwardCase("", lambda nn: nn.InstanceNorm1d(4), (3, 4, 7), of="converters.modules")
    call = call_of(case, nn.InstanceNorm1d(4), "nnx")
    assert isinstance(call, FlaxCall)
    assert call.of == "converters.modules.nnx.InstanceNorm"
