"""The whole comparison, both models in this process; and what cannot be compared, in one line each."""

import flax.linen as flax
import jax
import jax.numpy as jnp
import pytest
import torch
from torch import nn

from migrate.parity.compare import compare_sides
from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.options import ParityOptions, SideOptions
from migrate.parity.ground.results import LayerVerdict, ParityVerdict
from migrate.parity.ground.settings import SideSettings
from migrate.parity.sides.jax.runner import JaxRunner
from migrate.parity.sides.side import InProcess
from migrate.parity.sides.torch.runner import TorchRunner
from migrate.progress import no_progress

INPUTS = ("x=float32[2,7,12]",)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.act = nn.GELU()
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inp = nn.Linear(12, 16)
        self.blocks = nn.ModuleList([Block(16) for _ in range(2)])
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class FlaxBlock(flax.Module):
    width: int
    approximate: bool

    @flax.compact
    def __call__(self, x):
        y = flax.LayerNorm(epsilon=1e-5, name="norm")(x)
        y = flax.Dense(2 * self.width, name="up")(y)
        y = jax.nn.gelu(y, approximate=self.approximate)
        return x + flax.Dense(self.width, name="down")(y)


class FlaxNet(flax.Module):
    fault: bool = False
    heads: int = 5
    wide: bool = False

    @flax.compact
    def __call__(self, x):
        x = x + jnp.zeros(12, jnp.float32) if self.wide else x
        x = flax.Dense(16, name="inp")(x)
        for index in range(2):
            x = FlaxBlock(16, self.fault and index == 1, name=f"blocks_{index}")(x)
        return flax.Dense(self.heads, name="head")(x)


def compared(tmp_path, torch_model, flax_model, *inputs, **options):
    tmp_path.mkdir(exist_ok=True)
    a = InProcess(TorchRunner(torch_model, "torch", "net.py:Net"), tmp_path)
    runner = (
        TorchRunner(flax_model, "torch", "twin.py:Net")
        if isinstance(flax_model, nn.Module)
        else JaxRunner(flax_model, "linen", "flax_net.py:Net")
    )
    given = ParityOptions(inputs=inputs or INPUTS, **options)
    return compare_sides(a, InProcess(runner, tmp_path), given, tmp_path, no_progress)


def test_a_port_matches(tmp_path):
    found = compared(tmp_path, Net(), FlaxNet(), gradients=True, train=3, batch=True)
    assert found.verdict is ParityVerdict.MATCH, found.sentence
    assert found.matches
    assert {layer.verdict for layer in found.layers} == {LayerVerdict.MATCH}
    assert [section.name for section in found.sections] == [
        "outputs",
        "gradients",
        "training",
        "batch",
    ]
    assert all(section.passed for section in found.sections)
    assert found.first is None
    assert found.causes == ()
    assert 0 < found.floor < 1e-6
    assert found.truth is not None
    assert found.truth.dtype == "float64"


def test_a_mistake_is_found_where_it_is_and_named(tmp_path):
    found = compared(tmp_path, Net(), FlaxNet(fault=True), gradients=True)
    assert found.verdict is ParityVerdict.B_WORSE
    assert found.first is not None
    assert found.first.name == "blocks.1.act"
    assert found.causes[0].name == "gelu-form"
    assert found.causes[0].certain
    assert "blocks.1.act" in found.sentence
    assert "tanh" in found.sentence
    by_name = {layer.name: layer.verdict for layer in found.layers}
    assert by_name["blocks.0"] is LayerVerdict.MATCH
    assert by_name["head"] is LayerVerdict.CARRIED
    failed = {section.name for section in found.sections if not section.passed}
    assert failed == {"outputs", "gradients"}


@pytest.mark.long
def test_bfloat16_is_held_to_its_own_limits(tmp_path):
    half = SideOptions(SideSettings(dtype="bfloat16"))
    found = compared(tmp_path, Net(), FlaxNet(), b=half)
    assert found.profile == "bf16"
    assert found.verdict is ParityVerdict.MATCH, found.sentence
    assert found.floor > 1e-3


def test_a_side_in_another_dtype_is_no_match(tmp_path):
    """A constant in float32 makes all layers after it float32: nearer than a correct run."""
    half = SideOptions(SideSettings(dtype="bfloat16"))
    found = compared(tmp_path, Net(), FlaxNet(wide=True), b=half)
    assert found.verdict is ParityVerdict.PARTLY
    assert not found.matches
    said = "B in bfloat16 (most of its layers ran in float32)"
    assert [section.name for section in found.sections if not section.passed] == [said]
    assert f"not everything does: {said}" in found.sentence


@pytest.mark.long
def test_an_emulated_tpu_is_held_to_its_own_limits(tmp_path):
    tpu = SideOptions(SideSettings(precision="default"))
    found = compared(tmp_path, Net(), FlaxNet(), b=tpu)
    assert found.profile == "tpu-default"
    assert found.b.emulated
    assert found.verdict is ParityVerdict.MATCH, found.sentence
    strict = compared(tmp_path / "strict", Net(), FlaxNet(), b=tpu, profile="f32-highest")
    assert strict.verdict is not ParityVerdict.MATCH


def test_nan_on_both_sides_is_no_match(tmp_path):
    class Log(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return self.layer(x).log()

    found = compared(tmp_path, Log(), Log(), "x=float32[2,3]")
    assert found.verdict is not ParityVerdict.MATCH
    assert "NaN" in found.sentence


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 4)

    def forward(self, x, y):
        return self.layer(x + y)


@pytest.mark.parametrize(
    ("a", "b", "inputs", "message"),
    [
        (Net, FlaxNet, "z=float32[2,7,12]", "z"),
        (Net, FlaxNet, "x=float32[2,7,11]", "12"),
        (Wide, Wide, "x=float32[2,7,12]", "y"),
        (Net, lambda: FlaxNet(heads=6), "x=float32[2,7,12]", "head"),
        (Net, lambda: FlaxNet(), "x=int64[2,7,12]", "<"),
    ],
)
def test_what_cannot_be_compared_is_one_line(tmp_path, a, b, inputs, message):
    from converters.errors import ConversionError

    with pytest.raises((ParityError, ConversionError)) as told:
        compared(tmp_path, a(), b(), inputs)
    assert "\n" not in str(told.value)
    assert message in str(told.value)
    assert "; " in str(told.value)


def test_inputs_differ_among_each_other(tmp_path):
    found = compared(tmp_path, Net(), FlaxNet(), count=8)
    assert found.layers[0].a is not None
    assert found.layers[0].a.accumulated is not None
    assert len(set(found.layers[0].a.accumulated.per_input)) == 8
