"""Another size of the same architecture is another instance of the port's configuration."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from converters.graph import Port, port
from converters.graph.starts.watch import Watch
from converters.graph.writing.original.settings import Settings
from converters.graph.writing.original.turns import text_at
from tests.converters.graph.flax_side import Inputs, variables

LIMIT = 1e-5  # relative L2 in float32: a dozen layers' rounding is a tenth of it


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(0, 40, shape, generator=torch.Generator().manual_seed(1))


def real(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


class Layer(nn.Module):
    """A norm, and two layers whose sizes follow from two numbers."""

    def __init__(self, dim: int, heads: int, ratio: float = 2.0) -> None:
        super().__init__()
        hidden = int(dim * ratio)
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        parts = y.reshape(y.shape[0], y.shape[1], self.heads, y.shape[2] // self.heads)
        y = (parts * parts.mean(-1, keepdim=True)).flatten(2)
        return x + self.fc2(torch.relu(self.fc1(y)))


class Plain(nn.Module):
    """A model of one's own: no configuration, only arguments."""

    def __init__(self, width: int, depth: int, heads: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(7, width)
        self.layers = nn.ModuleList([Layer(width, heads) for _ in range(depth)])
        self.head = nn.Linear(width // 2, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x[..., ::2])


class Attend(nn.Module):
    """Positions counted in a function and clipped to a number; frequencies that the constructor computes."""

    def __init__(self, dim: int, heads: int, reach: int) -> None:
        super().__init__()
        self.heads, self.part, self.reach = heads, dim // heads, reach
        self.bias = nn.Embedding(2 * reach + 1, heads)
        inv = 1.0 / (500 ** (torch.arange(0, self.part, 2).float() / self.part))
        self.register_buffer("inv", inv, persistent=False)

    def turned(self, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        angle = torch.outer(torch.arange(t).float(), self.inv)
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos(), angle.sin()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        cos, sin = self.turned(t)
        heads = x.view(b, t, self.heads, self.part).transpose(1, 2)
        place = torch.arange(t)
        far = (place[None, :] - place[:, None]).clamp(-self.reach, self.reach) + self.reach
        scores = (heads * cos) @ (heads * sin).transpose(-1, -2) + self.bias(far).permute(2, 0, 1)
        y = (scores.softmax(-1) @ heads).transpose(1, 2).reshape(b, t, d)
        return y + y.tanh().flatten(1).view_as(x)


class Relative(nn.Module):
    """A gate over channels before an attention."""

    def __init__(self, dim: int, heads: int, reach: int) -> None:
        super().__init__()
        self.stem = nn.Conv1d(3, dim, 3, stride=2, padding=1)
        self.point = nn.Conv1d(dim, 2 * dim, 1)
        self.attend = Attend(dim, heads, reach)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.glu(self.point(self.stem(x.transpose(1, 2))), dim=1)
        return self.attend(x.transpose(1, 2))


def plain(width: int, depth: int, heads: int, classes: int) -> nn.Module:
    return Plain(width, depth, heads, classes)


class Computed(nn.Module):
    """A model whose forward computes numbers, with axes and factors that meet sizes by chance."""

    def __init__(self, classes: int, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.depthwise = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.gain = nn.Parameter(torch.full((dim,), 0.1))
        self.qkv = nn.Linear(dim, 3 * dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = (x + self.depthwise(x) * self.gain[:, None, None]).flatten(2).transpose(1, 2)
        b, n, d = x.shape
        q = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = q[0] @ q[1].transpose(-2, -1) / math.sqrt(d // self.heads)
        scores = scores.masked_fill(~mask[:, None][..., None, :], -1e9)
        x = (scores.softmax(-1) @ q[2]).transpose(1, 2).reshape(b, n, d)
        return self.head(x.mean(1))


def computed(**sizes: int) -> nn.Module:
    return Computed(**sizes)


class Numbered(nn.Module):
    """A layer that knows its place, and multiplies by a number that the place may be."""

    def __init__(self, dim: int, place: int) -> None:
        super().__init__()
        self.fc, self.place, self.scale = nn.Linear(dim, dim), place, 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.add(x, self.fc(x), alpha=self.scale + 1.0 if self.place < 0 else self.scale)


class InPlaces(nn.Module):
    """Layers that are given their places."""

    def __init__(self, dim: int = 6, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Numbered(dim, at) for at in range(depth)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x) * 1.0
        return x


class Patches(nn.Module):
    """A model whose constructor computes sizes of arguments that no module keeps."""

    def __init__(self, image: int, patch: int, dim: int, inner: int | None = None) -> None:
        super().__init__()
        count = (image // patch) ** 2
        inner = inner or dim * 3
        self.embed = nn.Conv2d(3, dim, patch, patch)
        self.position = nn.Parameter(torch.ones(1, count, dim))
        self.up, self.down = nn.Linear(dim, inner), nn.Linear(inner, dim)
        self.mix = nn.Linear(count, count)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2) + self.position
        x = x + self.down(torch.relu(self.up(x)))
        return self.mix(x.transpose(1, 2))


def llama(**sizes: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(max_position_embeddings=32, **sizes))


def vit(**sizes: Any) -> nn.Module:
    from transformers import ViTConfig, ViTModel

    return ViTModel(ViTConfig(**sizes), add_pooling_layer=False)


def t5(**sizes: Any) -> nn.Module:
    from transformers import T5Config, T5Model

    # Its first layers are others than the rest: the depth is that of the port.
    return T5Model(T5Config(num_layers=3, num_decoder_layers=2, **sizes))


# Of each model: what makes it, two sizes, and inputs for both.
CASES: dict[
    str, tuple[Callable[..., nn.Module], Mapping[str, Any], Mapping[str, Any], list[Inputs]]
] = {
    "a model without a configuration": (
        plain,
        {"width": 12, "depth": 2, "heads": 3, "classes": 5},
        {"width": 20, "depth": 3, "heads": 5, "classes": 4},
        [{"x": real(2, 4, 7)}, {"x": real(3, 5, 7)}],
    ),
    "numbers that a forward computes": (
        computed,
        {"classes": 7, "dim": 20, "heads": 4},
        {"classes": 6, "dim": 18, "heads": 3},
        [
            {"x": real(2, 20, 3, 2), "mask": torch.arange(6).expand(2, 6) < 4},
            {"x": real(3, 18, 3, 2), "mask": torch.arange(6).expand(3, 6) < 5},
        ],
    ),
    "arguments that no module keeps": (
        Patches,
        {"image": 12, "patch": 4, "dim": 6},
        {"image": 20, "patch": 5, "dim": 8},
        [{"x": real(2, 3, 12, 12)}, {"x": real(3, 3, 20, 20)}],
    ),
    "llama": (
        llama,
        {
            "vocab_size": 50,
            "hidden_size": 24,
            "intermediate_size": 40,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "rms_norm_eps": 1e-5,
        },
        {
            "vocab_size": 60,
            "hidden_size": 36,
            "intermediate_size": 44,
            "num_hidden_layers": 3,
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "head_dim": 4,
            "rms_norm_eps": 1e-4,
        },
        [{"input_ids": ids(2, 6)}, {"input_ids": ids(3, 9)}],
    ),
    "vit": (
        vit,
        {
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 12,
            "patch_size": 4,
        },
        {
            "hidden_size": 24,
            "intermediate_size": 40,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "image_size": 20,
            "patch_size": 5,
        },
        [{"pixel_values": real(2, 3, 12, 12)}, {"pixel_values": real(3, 3, 20, 20)}],
    ),
    "relative positions": (
        Relative,
        {"dim": 12, "heads": 2, "reach": 5},
        {"dim": 16, "heads": 4, "reach": 3},
        [{"x": real(2, 18, 3)}, {"x": real(3, 31, 3)}],
    ),
    "t5": (
        t5,
        {
            "vocab_size": 50,
            "d_model": 16,
            "d_kv": 8,
            "d_ff": 24,
            "num_heads": 4,
        },
        {
            "vocab_size": 60,
            "d_model": 20,
            "d_kv": 6,
            "d_ff": 28,
            "num_heads": 6,
        },
        [
            {"input_ids": ids(2, 6), "decoder_input_ids": ids(2, 5)},
            {"input_ids": ids(3, 7), "decoder_input_ids": ids(3, 8)},
        ],
    ),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if name == "t5" else ()) for name in CASES],
)
@pytest.mark.long_cases("llama")
def test_another_size_is_another_instance(name: str, load: Callable[..., Any]) -> None:
    factory, own, others, (first, second) = CASES[name]
    torch.manual_seed(0)
    arguments = {"": {"inner": None, **own}} if factory is Patches else None
    written = port(factory(**own).eval(), first, arguments=arguments)
    other = factory(**others).eval()
    flax = load(written, **named(written, others))
    weights = variables(other, written, second)
    with torch.no_grad():
        wanted = jax.tree.leaves(jax.tree.map(lambda one: one.numpy(), outputs(other(**second))))
    arrays = {key: jnp.asarray(value.numpy()) for key, value in second.items()}
    with jax.default_matmul_precision("highest"):
        found = jax.tree.leaves(jax.jit(flax.apply)(weights, **arrays))
    assert len(found) == len(wanted)
    for one, truth in zip(found, wanted, strict=True):
        assert one.shape == truth.shape
        assert np.linalg.norm(one - truth) < LIMIT * np.linalg.norm(truth)


def test_a_port_s_numbers_are_those_of_the_original() -> None:
    """Each follows from a field, is written as the original has it, or is listed in the README."""
    factory, own, _, (first, _) = CASES["numbers that a forward computes"]
    with Watch() as watch:
        model = factory(**own).eval()
    written = port(model, first, watch.starts(model))
    assert written.baked == ()
    assert "constant(0.1)" in written.modeling
    assert "feature_group_count=self.config.dim" in written.modeling
    assert "uniform_within(9 ** -0.5)" in written.modeling
    assert "mask[:, None, None]" in written.modeling
    fields = [line.split(":")[0].strip() for line in written.config.splitlines() if ": int" in line]
    assert fields == list(own)


def test_sizes_are_read_where_the_original_reads_them() -> None:
    """Not counted back from the model's input, nor named as a setting that the original does not have."""
    factory, own, _, (first, _) = CASES["relative positions"]
    written = port(factory(**own).eval(), first)
    assert "turned(self.inv, x.shape[1])" in written.modeling
    assert "jnp.arange(length)" in written.modeling
    assert "-self.config.reach" in written.modeling
    assert "1.0 / 500.0 **" in written.modeling
    assert "theta" not in written.config
    assert written.modeling.count(".reshape(x.shape)") == 2
    assert "jax.nn.glu(self.point(self.stem(x)), axis=-1)" in written.modeling
    assert written.baked == ()


class Block(nn.Module):
    """A layer of a stage, all of whose sizes follow from the stage's width."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((dim,), 0.1))
        self.depthwise = nn.Conv1d(dim, dim, 3, padding=1, groups=dim)
        self.wide, self.back = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.depthwise(x).transpose(1, 2)
        y = self.back(torch.relu(self.wide(y))) * self.gain
        return x + y.transpose(1, 2)


class Stage(nn.Module):
    def __init__(self, before: int, dim: int, depth: int) -> None:
        super().__init__()
        self.down = nn.Conv1d(before, dim, 1)
        self.layers = nn.Sequential(*[Block(dim) for _ in range(depth)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layers(self.down(x))
        return result


class Stages(nn.Module):
    """Stages whose widths are the entries of a list."""

    def __init__(self, widths: tuple[int, ...] = (8, 12, 16), depth: int = 2) -> None:
        super().__init__()
        self.stages = nn.ModuleList()
        before = 3
        for index in range(len(widths)):
            self.stages.append(Stage(before, widths[index], depth))
            before = widths[index]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for stage in self.stages:
            x = stage(x)
        return x


def test_one_width_is_one_field_however_its_expression_names_the_stage() -> None:
    arguments = {"": {"widths": (8, 12, 16), "depth": 2}}
    text = port(Stages(), {"x": real(2, 3, 9)}, arguments=arguments).modeling
    assert "feature_group_count: int" not in text
    assert "feature_group_count=self.dim" in text


def test_the_place_of_a_layer_is_no_factor() -> None:
    arguments = {"": {"dim": 6, "depth": 3}}
    text = port(InPlaces(), {"x": real(2, 6)}, arguments=arguments).modeling
    assert "self.place" not in text
    assert "for _ in range(self.config.depth)" in text


def test_each_free_size_of_the_inputs_has_its_name() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            return x.sum(1) + (y * z).sum(1)

    written = port(Two(), {"x": real(2, 5), "y": real(2, 7), "z": real(2, 7)})
    shapes = [argument.shape[1] for argument in written.inputs]
    assert shapes == ["length", "y_length", "y_length"]


def outputs(given: Any) -> Any:
    if not hasattr(given, "to_tuple"):
        return given
    return {key: one for key, one in given.items() if isinstance(one, torch.Tensor)}


def named(written: Port, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes that the port has a setting for; it must have one for every size that is another."""
    space: dict[str, Any] = {}
    exec(written.config, space)
    fields = {one.name for one in dataclasses.fields(space[written.config_class])}
    missing = sizes.keys() - fields
    assert not missing
    return {name: value for name, value in sizes.items() if name in fields}


class Joined(nn.Module):
    """Layers whose widths are pairs of a joined list, in one of three spellings."""

    def __init__(self, way: int, bands: int = 7, widths: tuple[int, ...] = (8, 10)) -> None:
        super().__init__()
        joined: Any = (bands,) + tuple(widths)  # noqa: RUF005
        if way == 1:
            joined = [bands, *widths]
        if way < 2:
            self.layers = nn.ModuleList(
                nn.Linear(a, b)
                for a, b in zip(joined, joined[1:], strict=False)  # noqa: RUF007
            )
        else:
            self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in itertools.pairwise(joined)])
        self.head = nn.Linear(joined[-1], 3)


@pytest.mark.parametrize("way", range(3))
def test_widths_of_a_joined_list_are_entries_of_settings(way: int) -> None:
    model = Joined(way)
    settings = Settings(model, {"": {"way": way, "bands": 7, "widths": (8, 10)}})
    for at, layer in enumerate(model.layers):
        sides = [
            settings.of_layer(layer, f"{side}_features", getattr(layer, f"{side}_features"))
            for side in ("in", "out")
        ]
        assert [side.text for side in sides] == ["(bands, *widths)[i]", "widths[i]"]
        assert [text_at(side.text, at) for side in sides] == [
            ("bands", "widths[0]")[at],
            f"widths[{at}]",
        ]
    assert settings.of_layer(model.head, "in_features", 10).text == "widths[-1]"


class Chained(nn.Module):
    """Layers whose widths follow from a list in several ways, none of which is a joined list."""

    def __init__(
        self, bands: int = 7, widths: tuple[int, ...] = (8, 10, 12), shares: Any = (0.2, 0.7)
    ) -> None:
        super().__init__()
        self.pairs = nn.ModuleList()
        for a, b in zip(widths[:-1], widths[1:], strict=True):  # noqa: RUF007
            self.pairs.append(nn.Linear(a, b))
        layers: list[nn.Module] = []
        before = bands
        for width in widths:
            layers.append(nn.Linear(before, width))
            layers.append(nn.ReLU())
            before = width
        layers.append(nn.Linear(before, len(shares)))
        self.chain = nn.Sequential(*layers)
        self.first = nn.ModuleList(
            [nn.Linear(widths[i - 1] if i > 0 else 3, widths[i]) for i in range(len(widths))]
        )


def test_widths_and_depths_of_a_list_are_entries_and_lengths_of_the_setting() -> None:
    model = Chained()
    arguments = {"bands": 7, "widths": (8, 10, 12), "shares": (0.2, 0.7)}
    settings = Settings(model, {"": arguments})

    def sides(layer: Any) -> list[str]:
        return [
            getattr(settings.of_layer(layer, name, getattr(layer, name)), "text", "")
            for name in ("in_features", "out_features")
        ]

    assert sides(model.pairs[1]) == ["widths[i]", "widths[i + 1]"]
    assert sides(model.first[0]) == sides(model.first[2]) == ["(3, *widths)[i]", "widths[i]"]
    chained = [sides(model.chain[place]) for place in (0, 2, 4, 6)]
    assert chained == [
        ["bands", "widths[0]"],
        ["widths[0]", "widths[1]"],
        ["widths[1]", "widths[2]"],
        ["widths[-1]", "len(shares)"],
    ]
    assert settings.of_count(model, "pairs", 2).text == "len(widths) - 1"
    assert settings.of_count(model, "first", 3).text == "len(widths)"


class Strided(nn.Module):
    """Layers whose width is one number in the first turn, and another one in each later turn."""

    def __init__(self, bands: int = 7, dim: int = 8, strides: tuple[int, ...] = (2, 1, 1)) -> None:
        super().__init__()
        self.convs, self.grown = nn.ModuleList(), nn.ModuleList()
        channels = bands
        for stride in strides:
            self.convs.append(nn.Conv1d(channels, dim, 3, stride=stride))
            channels = dim
        width = bands
        for _ in strides:
            self.grown.append(nn.Linear(width, width + dim))
            width = width + dim


def test_a_width_that_only_the_first_turn_has_is_followed() -> None:
    model = Strided()
    settings = Settings(model, {"": {"bands": 7, "dim": 8, "strides": (2, 1, 1)}})

    def text(layer: Any, name: str) -> str:
        return getattr(settings.of_layer(layer, name, getattr(layer, name)), "text", "")

    assert [text(conv, "in_channels") for conv in model.convs] == ["bands", "dim", "dim"]
    assert text(model.grown[1], "in_features") == ""


class Sinusoids(nn.Module):
    """A table that a constructor fills by slices."""

    def __init__(self, reach: int = 16, dim: int = 12) -> None:
        super().__init__()
        table = torch.zeros(reach, dim)
        place = torch.arange(0, reach, dtype=torch.float).unsqueeze(1)
        rate = torch.exp(torch.arange(0, dim, 2).float() * (-math.log(10000.0) / dim))
        table[:, 0::2] = torch.sin(place * rate)
        table[:, 1::2] = torch.cos(place * rate)
        table = table.unsqueeze(0)
        self.register_buffer("table", table)
        self.mix = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mix(x + self.table[:, : x.shape[1]])


def test_a_table_that_is_filled_by_slices_follows_the_sizes(load: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    own = {"reach": 16, "dim": 12}
    written = port(Sinusoids(**own).eval(), {"x": real(2, 5, 12)}, arguments={"": own})
    assert ".at[:, 0::2].set(jnp.sin(place * rate))" in written.modeling
    assert "-math.log(10000.0) / self.config.dim" in written.modeling
    other, second = Sinusoids(9, 8).eval(), {"x": real(2, 7, 8)}
    flax = load(written, reach=9, dim=8)
    start = flax.init(jax.random.key(0), x=second["x"].numpy())
    np.testing.assert_allclose(start["buffers"]["table"], other.table, atol=1e-6)
    found = flax.apply(variables(other, written, second), x=second["x"].numpy())
    np.testing.assert_allclose(found, other(**second).detach(), rtol=1e-5, atol=1e-5)
