"""Ports at a second size: what they follow, what they refuse by name, and how long free axes may be."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Mapping
from math import log
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax.errors import ScopeParamShapeError
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from converters.errors import MappingFileError
from converters.graph import Port, port
from converters.graph.recording.trace import GraphError
from converters.graph.starts.watch import watching
from converters.graph.writing.model import Limits
from converters.graph.writing.original.elsewhere import values_elsewhere
from converters.graph.writing.repeated.repeats import Repeats
from converters.mapping.file import OpenSizes
from migrate.port.initialization import drawn_there
from migrate.port.package import package_of
from migrate.port.sizes.construction import constructions
from migrate.port.sizes.flax import PortRefusesError, origin, outputs_of, refused
from migrate.port.sizes.instance import SizeChange, built
from migrate.port.sizes.leaves import Leaf, candidates, change, leaves
from migrate.port.sizes.prove import sizes_of
from migrate.port.sizes.results import Sizes
from migrate.port.sizes.second import second
from migrate.port.texts import package_text, with_tied_inputs
from migrate.port.weights import write_weights
from migrate.progress import Progress, no_progress

Inputs = Mapping[str, torch.Tensor]


def ids(*shape: int, below: int = 20) -> torch.Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(1))


def real(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


class Gated(nn.Module):
    """A number in the forward that is half of a width by chance: it is 24 at every width."""

    def __init__(self, dim: int = 12, gate: int = 48, heads: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.gate = nn.Linear(dim, gate)
        self.out = nn.Linear(24, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = x.view(x.shape[0], x.shape[1], self.heads, -1)
        y = (parts * parts.mean(-1, keepdim=True)).flatten(2)
        return self.out(torch.tanh(self.gate(y))[..., :24])


def twelve() -> int:
    return 12


class Coincidence(nn.Module):
    """A number that is the width by chance: nothing on its line says what it is."""

    def __init__(self, dim: int = 12, classes: int = 5) -> None:
        super().__init__()
        self.layer = nn.Linear(dim, 24)
        self.out = nn.Linear(2, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return self.out(y.view(y.shape[0], y.shape[1], twelve(), -1).cumsum(2))


class Windowed(nn.Module):
    """A branch on the length: above the window it is another attention."""

    def __init__(self, vocab: int = 20, dim: int = 8, window: int = 9) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.window = window

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        x, length = self.embed(idx), idx.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        if length > self.window:
            mask = mask.triu(-self.window)
        scores = (x @ x.transpose(1, 2)).masked_fill(~mask, -1e9)
        return scores.softmax(-1) @ x


class Routed(nn.Module):
    """The number of chosen experts, which no weight shows."""

    def __init__(self, dim: int = 10, experts: int = 6, top_k: int = 2) -> None:
        super().__init__()
        self.top_k = top_k
        self.gate = nn.Linear(dim, experts)
        self.experts = nn.ModuleList([nn.Linear(dim, dim) for _ in range(experts)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = torch.topk(self.gate(x).softmax(-1), self.top_k)
        combine = torch.zeros_like(self.gate(x)).scatter(-1, chosen, weights)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            out = out + combine[..., i : i + 1] * expert(x) / self.top_k
        return out


class Scaled(nn.Module):
    """Factors that follow from sizes: one is an attribute, one is computed on its line, one rounded."""

    def __init__(self, dim: int = 12, heads: int = 3, ratio: float = 8 / 3) -> None:
        super().__init__()
        self.dim, self.heads, self.ratio = dim, heads, ratio
        self.head_dim = dim // heads
        self.scaling = self.head_dim**-0.5
        hidden = 4 * math.ceil(dim * ratio / 4)
        self.layer = nn.Linear(dim, 2 * hidden)
        self.out = nn.Linear(hidden, max(dim, heads))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.layer(x * self.scaling).sin().chunk(2, -1)
        return self.out(gate * up) * (self.dim**-0.5)


class Residual(nn.Module):
    """A module around one that it is given."""

    def __init__(self, dim: int, layer: nn.Module) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((dim,), 0.1))
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * self.layer(x)


class Mixed(nn.Module):
    """Heads whose size only a product has, and a reshape with a side that nothing else says."""

    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        inner = head_dim * heads
        self.heads, self.scale = heads, head_dim**-0.5
        self.up, self.down = nn.Linear(dim, 2 * inner), nn.Linear(inner, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k = (part.unflatten(-1, (self.heads, -1)) for part in self.up(x).chunk(2, -1))
        return self.down((q * k.softmax(-1) * self.scale).reshape(*x.shape[:2], -1))


class Wrapped(nn.Module):
    """Modules that are made in the constructor of the model, and kept by others."""

    def __init__(self, dim: int = 6, heads: int = 3, head_dim: int = 5, hidden: int = 10) -> None:
        super().__init__()
        wide = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))
        self.layers = nn.ModuleList(
            [Residual(dim, Mixed(dim, heads, head_dim=head_dim)), Residual(dim, wide)]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Images(nn.Module):
    """Images of any size, and a number of the constructor that only a buffer keeps."""

    def __init__(self, channels: int = 3, width: int = 6, scale: float = 3.0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3, padding=1)
        self.register_buffer("scale", torch.tensor(scale), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x)).mean((2, 3)) * self.scale


class Fixed(nn.Module):
    """Positions for images of one size."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 1)
        self.positions = nn.Parameter(real(8 * 12, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).flatten(2).transpose(1, 2) + self.positions


class Dropped(nn.Module):
    """Rates that no output in evaluation shows, one of them told in a way that nothing follows."""

    def __init__(
        self, dim: int = 6, share: float = 0.1, hidden: float = 0.2, off: float = 0.0, rows: int = 9
    ) -> None:
        super().__init__()
        self.layer = nn.Linear(dim, dim)
        self.drop = nn.Dropout(share)
        self.other = nn.Dropout({"rate": hidden}["rate"])
        self.off = nn.Dropout(off)
        self.register_buffer("table", torch.ones(rows, 1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(self.drop(x)) + self.table[: x.shape[1]]
        return self.off(self.other(x))


@dataclasses.dataclass
class Config:
    """Sizes as research code has them."""

    dim: int = 12
    layers: int = 2
    kinds: list[str] = dataclasses.field(default_factory=lambda: ["a", "b"])
    widths: list[int] = dataclasses.field(default_factory=lambda: [8, 8])
    eps: float = 1e-6


class Configured(nn.Module):
    """Layers of kinds that a list names, one for each."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(
            [nn.Linear(config.dim, config.dim) for _ in range(config.layers)]
        )
        self.norm = nn.LayerNorm(config.dim, eps=config.eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for kind, layer in zip(self.config.kinds, self.layers, strict=True):
            x = torch.tanh(layer(x)) if kind == "a" else torch.relu(layer(x))
        return self.norm(x)


def sized(
    build: Callable[[], nn.Module],
    inputs: Inputs,
    folder: Path,
    progress: Progress = no_progress,
    *,
    seen_arguments: bool = False,
    api: str = "linen",
) -> tuple[Port, Sizes]:
    """A port with what it refuses, and what was found out; its folder is at `folder / "net"`."""
    torch.manual_seed(0)
    with constructions() as seen, watching() as watch:
        model = build()
    model.eval()
    told = (watch.starts(model), seen.arguments(model)) if seen_arguments else (None, None)
    written = port(model, inputs, starts=told[0], arguments=told[1], api=api)
    place = folder / "net"
    place.mkdir()
    texts = frozenset(one.text for one in written.bounds)
    without = written.limited(Limits(lifted=texts, lengths=frozenset(written.settings)))
    _write(place, without, inputs)
    sizes = OpenSizes(written.settings, written.layer_sizes)
    write_weights(model, "net", written.constants, None, place, folder, api, sizes=sizes)
    arrays = {name: one.numpy() for name, one in inputs.items()}
    found = sizes_of(written, place, model, seen.of(model), arrays, "net", progress)
    limited = written.limited(found.limits)
    _write(place, limited, inputs)
    return limited, found


def _write(place: Path, written: Port, inputs: Inputs) -> None:
    (place / "modeling.py").write_text(written.modeling)
    (place / "config.py").write_text(written.config)
    shapes = {
        name: (tuple(one.shape), str(one.numpy().dtype).replace("64", "32"))
        for name, one in inputs.items()
    }
    names = written.model_class, written.config_class
    text = package_text(*names, "a model", shapes, api=written.api)
    (place / "__init__.py").write_text(text)


def outputs(written: Port, place: Path, model: nn.Module, inputs: Inputs, **sizes: Any) -> Any:
    """What the port in a folder gives at other sizes; the original's weights go through its mapping."""
    names = written.model_class, written.config_class
    arrays = {name: one.numpy() for name, one in inputs.items()}
    with package_of(place) as package:
        (found,) = outputs_of(package, place, names, sizes, model.eval(), arrays)
    return found


def assert_close(found: Any, wanted: torch.Tensor) -> None:
    truth = wanted.detach().numpy()
    assert np.linalg.norm(found - truth) < 1e-5 * np.linalg.norm(truth)


def test_a_number_is_no_half_of_a_side(tmp_path: Path) -> None:
    written, found = sized(Gated, {"x": real(2, 5, 12)}, tmp_path)
    assert {name for name, _, _ in found.changed} == {"dim", "gate", "heads"}
    assert found.distance is not None
    assert found.distance < 1e-5
    assert not found.held
    x, other = real(3, 4, 20), Gated(dim=20, gate=60, heads=5)
    sizes = {"dim": 20, "gate": 60, "heads": 5}
    assert_close(outputs(written, tmp_path / "net", other, {"x": x}, **sizes), other(x))


def test_a_coincidence_is_found_and_refused(tmp_path: Path) -> None:
    written, found = sized(Coincidence, {"x": real(2, 5, 12)}, tmp_path)
    assert {name for name, _, _ in found.changed} == {"classes"}
    assert {one.name: one.value for one in found.held} == {"dim": 12}
    (held,) = found.held
    assert held.why.startswith("at 18 the ")
    assert str(tmp_path) not in held.why
    other, x = Coincidence(classes=7), real(3, 4, 12)
    assert_close(outputs(written, tmp_path / "net", other, {"x": x}, classes=7), other(x))
    with pytest.raises(PortRefusesError, match=r"dim=20: modeling\.py supports 12 only"):
        outputs(written, tmp_path / "net", Coincidence(dim=20), {"x": real(2, 5, 20)}, dim=20)


def test_a_branch_on_a_length_bounds_it(tmp_path: Path) -> None:
    written, found = sized(Windowed, {"idx": ids(2, 7)}, tmp_path)
    assert [one.text for one in written.bounds] == ["axis 1 of idx: up to 9"]
    assert 'demand_size(idx.shape[1] <= 9, "axis 1 of idx: up to 9")' in written.modeling.replace(
        "'", '"'
    )
    assert {one.name: one.value for one in found.held} == {"window": 9}
    model = Windowed()
    within, beyond = ids(3, 9), ids(2, 10)
    assert_close(outputs(written, tmp_path / "net", model, {"idx": within}), model(within))
    with pytest.raises(PortRefusesError, match="this port takes axis 1 of idx: up to 9"):
        outputs(written, tmp_path / "net", model, {"idx": beyond})


def test_a_bound_of_both_branches_alike_is_lifted(tmp_path: Path) -> None:
    class Alike(nn.Module):
        def __init__(self, dim: int = 6) -> None:
            super().__init__()
            self.layer = nn.Linear(dim, dim)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) if x.shape[1] > 8 else self.layer(x) * 1.0

    written, found = sized(Alike, {"x": real(2, 5, 6)}, tmp_path)
    assert found.lifted == ("axis 1 of x: up to 8",)
    assert written.bounds == ()
    assert "demand_size" not in written.modeling


def test_an_axis_that_a_recording_fixes_and_nothing_decides_is_free(tmp_path: Path) -> None:
    class Sequences(nn.Module):
        def __init__(self, dim: int = 6) -> None:
            super().__init__()
            self.lstm = nn.LSTM(dim, dim, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lstm(x)[0]

    written, found = sized(Sequences, {"x": real(2, 5, 6)}, tmp_path)
    assert written.free == ("x: batch (axis 0)",)
    [(axes, here, there)] = found.other_axes
    assert (axes, here) == ("axis 1 of x", 5)
    assert found.free == (f"axis 1 of x: recorded with 5, proven with {there} too",)
    assert not found.axes
    x = real(3, there + 4, 6)
    model = Sequences()
    assert_close(outputs(written, tmp_path / "net", model, {"x": x}), model(x))


def test_a_number_that_no_weight_shows_is_a_field(tmp_path: Path) -> None:
    written, found = sized(Routed, {"x": real(2, 5, 10)}, tmp_path)
    assert "dim" in {name for name, _, _ in found.changed}
    assert not found.held
    for sizes in ({"top_k": 4}, {"experts": 7}):
        model, x = Routed(**sizes), real(2, 5, 10)
        assert_close(outputs(written, tmp_path / "net", model, {"x": x}, **sizes), model(x))


def test_factors_that_follow_from_sizes_are_expressions(tmp_path: Path) -> None:
    written, found = sized(Scaled, {"x": real(2, 5, 12)}, tmp_path)
    assert {name for name, _, _ in found.changed} == {"dim", "heads", "ratio"}
    assert not found.held
    assert not written.baked, "chunk needs no half of a width"
    model, x = Scaled(dim=20, heads=2), real(3, 4, 20)
    assert_close(outputs(written, tmp_path / "net", model, {"x": x}, dim=20, heads=2), model(x))


def test_sizes_are_followed_through_modules_that_a_constructor_is_given(tmp_path: Path) -> None:
    written, found = sized(Wrapped, {"x": real(2, 7, 6)}, tmp_path)
    assert {name for name, _, _ in found.changed} == {"dim", "heads", "head_dim", "hidden"}
    assert not found.held
    assert "self.config.head_dim * self.config.heads" in written.modeling
    sizes = {"dim": 8, "heads": 2, "head_dim": 3, "hidden": 4}
    model, x = Wrapped(**sizes), real(3, 4, 8)
    assert_close(outputs(written, tmp_path / "net", model, {"x": x}, **sizes), model(x))


class Gain(nn.Module):
    """Numbers that the original computes of literals."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((dim,), log(3.0)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gain.clamp(-math.log(50.0), math.log(100.0))


class Mixer(nn.Sequential):
    """A Sequential that makes its own layers of two numbers and a rate."""

    def __init__(self, dim: int, mult: int, rate: float) -> None:
        hidden = [nn.Linear(dim, dim * mult), nn.Tanh(), nn.Dropout(rate)]
        super().__init__(Gain(dim), nn.Sequential(*hidden), nn.Linear(dim * mult, dim))


class Tail(nn.ModuleList):
    """A list that makes its own layers, and has a forward."""

    def __init__(self, dim: int, depth: int) -> None:
        super().__init__([nn.Linear(dim, dim) for _ in range(depth)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self:
            x = layer(x).tanh()
        return x


class Stack(nn.Module):
    """Lists that make their own members, padding that follows from a kernel, and a sum over layers."""

    def __init__(
        self, dim: int = 6, mult: int = 2, rate: float = 0.1, kernel: int = 5, depth: int = 3
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, dim, kernel, padding=kernel // 2)
        self.blocks = nn.ModuleList([Mixer(dim, mult, rate) for _ in range(depth)])
        self.last = Mixer(dim, 2 * mult, rate)
        self.tail = Tail(dim, depth)
        self.mix = nn.Parameter(torch.zeros(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x).transpose(1, 2)
        weights = self.mix.softmax(0)
        total = 0.0
        for i, block in enumerate(self.blocks):
            x = x + block(x)
            total = total + weights[i] * x
        return self.tail(self.last(total))


def test_lists_that_make_their_own_members_follow_their_numbers(tmp_path: Path) -> None:
    written, found = sized(Stack, {"x": real(2, 3, 8)}, tmp_path, seen_arguments=True)
    assert not found.held
    changed = {name for name, _, _ in (*found.changed, *found.rates)}
    assert changed >= {"dim", "mult", "rate", "kernel", "depth"}
    assert "class Mixer(" in written.modeling
    assert "total: Any = 0.0\n" in written.modeling
    assert "clamp(self.gain, -math.log(50.0), math.log(100.0))" in written.modeling
    assert "constant(math.log(3.0))" in written.modeling
    assert not written.baked
    error = PortRefusesError("", "blocks_1/layers_0/gain")
    line = inspect.getsourcelines(Gain)[1] + 5
    assert origin(error, Stack()) == f"Gain, test_sizes.py:{line}"
    error = PortRefusesError("", "blocks_1/layers_1/layers_0/bias")
    assert origin(error, Stack()).startswith("Mixer, test_sizes.py:")
    sizes = {"dim": 4, "mult": 3, "kernel": 3, "depth": 4}
    model, x = Stack(**sizes), real(3, 3, 7)
    model.mix.data.normal_()
    assert_close(outputs(written, tmp_path / "net", model, {"x": x}, **sizes), model(x))


def test_sides_of_images_are_tried_too(tmp_path: Path) -> None:
    written, found = sized(Images, {"x": real(2, 3, 8, 12)}, tmp_path)
    assert not found.axes
    names = {name for name, _, _ in found.changed}
    assert {"channels", "width", "axis 2 of x", "axis 3 of x"} <= names
    assert {one.name for one in found.held} <= {"scale"}
    model, x = Images(width=9), real(1, 3, 7, 9)
    assert_close(outputs(written, tmp_path / "net", model, {"x": x}, width=9), model(x))


def test_a_side_that_stays_is_refused_by_name(tmp_path: Path) -> None:
    written, found = sized(Fixed, {"x": real(2, 3, 8, 12)}, tmp_path)
    assert found.axes == {("x", 1): 3, ("x", 2): 8, ("x", 3): 12}
    with pytest.raises(PortRefusesError, match="this port takes axis 2 of x: 8"):
        outputs(written, tmp_path / "net", Fixed(), {"x": real(2, 3, 12, 8)})


def test_lists_follow_the_number_of_layers(tmp_path: Path) -> None:
    _, found = sized(lambda: Configured(Config()), {"x": real(2, 5, 12)}, tmp_path)
    changed = {name for name, _, _ in found.changed}
    assert {"dim", "eps"} <= changed
    assert ("layers" in changed) != ("layers" in {one.name for one in found.held})
    arguments: dict[str, Any] = {"config": Config()}
    leaf = next(one for one in leaves(arguments) if one.name == "layers")
    change(arguments, leaf, 3)
    assert arguments["config"] == Config(layers=3, kinds=["a", "b", "a"])


def test_what_cannot_be_built_again_holds_all_sizes(tmp_path: Path) -> None:
    def build() -> nn.Module:
        model = Gated()
        model.out = nn.Linear(24, 7)
        return model

    written, found = sized(build, {"x": real(2, 5, 12)}, tmp_path)
    assert found.error == "the model was changed after its constructor had made it"
    assert not found.changed
    assert {one.name for one in found.held} == set(written.settings)
    with pytest.raises(PortRefusesError, match=r"heads=6: modeling\.py supports 3 only"):
        outputs(written, tmp_path / "net", build(), {"x": real(2, 5, 12)}, heads=6)


def test_a_port_of_a_second_size_is_that_of_the_first(tmp_path: Path) -> None:
    """What is proven at one size and at another is what a port of the other says."""
    written, found = sized(Images, {"x": real(2, 3, 8, 12)}, tmp_path)
    other = port(Images(channels=4, width=9).eval(), {"x": real(2, 4, 8, 12)})
    assert other.modeling == written.modeling
    assert found.error == ""


def test_the_arguments_of_a_constructor_are_seen() -> None:
    class Rest(nn.Module):
        def __init__(self, first: int, *others: int, last: int = 3, **more: int) -> None:
            super().__init__()
            self.sizes = first, *others, last, *more.values()

    with constructions() as seen:
        model = nn.Sequential(Rest(1, 2, 5, more=7), Gated(dim=6))
    found = seen.of(model[0])
    assert found is not None
    assert found.build(found.arguments).sizes == (1, 2, 5, 3, 7)
    gated = seen.of(model[1])
    assert gated is not None
    assert gated.arguments == {"dim": 6, "gate": 48, "heads": 3}
    assert seen.of(Gated()) is None


def test_the_configuration_that_a_constructor_makes_is_an_argument() -> None:
    class Usual(nn.Module):
        def __init__(self, config: Config | None = None, name: str | None = None) -> None:
            super().__init__()
            config = config or Config()
            self.layer = Configured(config)

    with constructions() as seen:
        model = Usual()
    found = seen.of(model)
    assert found is not None
    assert isinstance(found.arguments["config"], Config)
    assert found.arguments["name"] is None


class Derived(nn.Module):
    """A net that refuses the number of heads that it chooses itself."""

    def __init__(self, dim: int = 8, heads: int | None = None) -> None:
        super().__init__()
        if heads is not None:
            raise ValueError("heads cannot be given yet")
        heads = dim // 4
        self.layer = nn.Linear(dim, heads)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def test_a_constructor_that_refuses_what_it_chooses_itself_is_called_as_it_was(
    tmp_path: Path,
) -> None:
    _, sizes = sized(Derived, {"x": real(3, 8)}, tmp_path)
    assert not sizes.error
    assert {name for name, _, _ in sizes.changed} == {"dim"}


def test_a_model_that_no_memory_holds_is_not_built() -> None:
    held: list[int] = []

    class Grows(nn.Module):
        def __init__(self, growth: int) -> None:
            super().__init__()
            self.layer = nn.Linear(64, growth**4)
            if self.layer.weight.device.type != "meta":
                held.append(growth)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    with constructions() as seen:
        created = seen.of(Grows(2))
    assert created is not None
    (leaf,) = leaves(created.arguments)
    inputs = {"x": np.ones((1, 64), np.float32)}
    sizes = [built(created, inputs, (SizeChange(leaf, growth, {}),), "m") for growth in (3, 48)]
    assert [size is not None for size in sizes] == [True, False]
    assert held == [2, 3]


class Counts(nn.Module):
    """Counts its runs with numbers; may read a number, or keep a tensor."""

    runs = 0

    def __init__(self, width: int, reads: bool, keeps: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(3, width)
        self.reads, self.keeps, self.kept = reads, keeps, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        if self.keeps and self.kept is None:
            self.kept = y
        if self.reads and y.sum() > 1e9:
            return x
        Counts.runs += not isinstance(y, FakeTensor)
        return y


@pytest.mark.parametrize(("reads", "keeps"), [(False, False), (True, False), (False, True)])
def test_shapes_alone_are_had_without_numbers_where_that_is_possible(
    reads: bool, keeps: bool
) -> None:
    with constructions() as seen:
        created = seen.of(Counts(4, reads, keeps))
    assert created is not None
    Counts.runs = 0
    leaf = next(one for one in leaves(created.arguments) if one.name == "width")
    inputs = {"x": np.ones((2, 3), np.float32)}
    sized = built(created, inputs, (SizeChange(leaf, 5, {}),), "m", computes=False)
    assert sized is not None
    assert [tuple(output.shape) for output in sized.outputs] == [(2, 5)]
    assert Counts.runs == (reads or keeps)
    assert not isinstance(sized.module.kept, FakeTensor)


def test_a_constructor_that_takes_its_list_apart_is_called_again_with_the_list() -> None:
    class Blocks(nn.Module):
        def __init__(self, blocks: list[dict[str, object]]) -> None:
            super().__init__()
            self.kinds = [block.pop("kind") for block in blocks]
            del blocks[1:]

    with constructions() as seen:
        model = Blocks([{"kind": "conv"}, {"kind": "pool"}])
    created = seen.of(model)
    assert created is not None
    assert created.build(created.copied()).kinds == ["conv", "pool"]


def test_every_candidate_is_another_value() -> None:
    for value in (1, 2, 3, 8, 12, 64, 30000, 1e-6, 0.5, 10000.0, (2, 2), (16, 32), (1, 2, 3)):
        leaf = Leaf(("x",), value)
        for upwards in (True, False):
            found = candidates(leaf, upwards)
            assert found
            assert value not in found
            assert len(set(found)) == len(found)
    assert not candidates(Leaf(("x",), 0), True)
    assert not candidates(Leaf(("x",), 0.0), True)


@dataclasses.dataclass
class Rotary:
    """Numbers in mappings, two of them under one name."""

    dim: int = 12
    rope: dict[str, dict[str, float]] = dataclasses.field(
        default_factory=lambda: {"near": {"theta": 100.0}, "far": {"theta": 1000.0}}
    )


class Rotated(nn.Module):
    """Factors that follow from numbers in a mapping of the configuration."""

    def __init__(self, config: Rotary) -> None:
        super().__init__()
        self.config = config
        self.layer = nn.Linear(config.dim, config.dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        near = torch.arange(self.config.dim, device=x.device) / self.config.rope["near"]["theta"]
        far = torch.arange(self.config.dim, device=x.device) / self.config.rope["far"]["theta"]
        return self.layer(x * near.cos() + far.sin())


def test_numbers_in_mappings_have_names_of_their_own(tmp_path: Path) -> None:
    _, found = sized(lambda: Rotated(Rotary()), {"x": real(2, 5, 12)}, tmp_path)
    assert {name for name, _, _ in found.changed} == {"dim"}
    assert {one.name: one.value for one in found.held} == {"near_theta": 100.0, "far_theta": 1000.0}


def test_settings_in_mappings_are_read_at_another_size() -> None:
    own, other = Rotary(), Rotary(rope={"near": {"theta": 70.0}, "far": {"theta": 1500.0}})
    settings = {"near_theta": 100.0, "far_theta": 1000.0}
    sources = {name: (name, ("",)) for name in settings}
    sides = [(Rotated(config), {"config": config}) for config in (own, other)]
    found = values_elsewhere(settings, sources, *sides)
    assert found == {"near_theta": 70.0, "far_theta": 1500.0}
    assert values_elsewhere({"theta": 1000.0}, {"theta": ("theta", ("",))}, *sides) == {
        "theta": 1500.0
    }


def test_what_the_original_or_shapes_can_tell_is_not_run(tmp_path: Path) -> None:
    """A number that nothing of the port reads is asked of the original, a width of shapes alone."""
    told: list[tuple[str, int]] = []

    def progress(what: str, done: int = 0, total: int = 0, unit: str = "file") -> None:
        told.append((what, done))

    _, found = sized(lambda: Rotated(Rotary()), {"x": real(2, 5, 12)}, tmp_path, progress)
    assert len(found.held) == 2
    assert told == [
        ("comparing shapes at other sizes", 0),
        ("comparing outputs at other sizes", 0),
    ]
    told.clear()
    (tmp_path / "other").mkdir()
    _, found = sized(Coincidence, {"x": real(2, 5, 12)}, tmp_path / "other", progress)
    (held,) = found.held
    assert held.name == "dim"
    assert re.search(r" \(Coincidence, test_sizes\.py:\d+\)$", held.why)
    assert [done for what, done in told if "outputs" in what] == [0]
    assert {name for name, _, _ in found.changed} == {"classes"}


class Deep(nn.Module):
    """A model with more parameters than are needed to tell what it follows."""

    def __init__(self, vocab: int = 3000, dim: int = 1536, depth: int = 6, side: int = 96) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(depth)])
        self.positions = nn.Parameter(real(side, 1))

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        x = self.embed(idx) + self.positions
        for norm in self.norms:
            x = torch.tanh(norm(x))
        return x


def test_a_big_model_is_compared_at_a_smaller_size() -> None:
    with constructions() as seen:
        model = Deep()
    construction = seen.of(model)
    assert construction is not None
    inputs = {"idx": ids(1, 96).numpy()}
    base = built(construction, inputs, (), "net")
    assert base is not None
    found = second(construction, base, (), "net")
    values = {one.name: one.value for one in found.changes}
    assert {name: values[name] for name in ("vocab", "dim", "depth")} == {
        "vocab": 187,
        "dim": 96,
        "depth": 2,
    }
    assert values["side"] != 96


class Scale(nn.Module):
    """A factor in a buffer, as Gemma's embeddings have it."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = nn.Buffer(torch.tensor(scale), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class Widened(nn.Module):
    def __init__(self, dim: int = 12) -> None:
        super().__init__()
        self.layer = nn.Linear(dim, dim)
        self.scaled = Scale(scale=dim**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scaled(self.layer(x))


def test_a_number_in_a_buffer_follows_the_argument_that_gives_it(tmp_path: Path) -> None:
    written, found = sized(Widened, {"x": real(2, 5, 12)}, tmp_path)
    assert not found.held
    model, x = Widened(dim=20), real(3, 4, 20)
    assert_close(outputs(written, tmp_path / "net", model, {"x": x}, dim=20), model(x))


class Divided(nn.Module):
    """Heads that divide a width, which the source does not follow."""

    def __init__(self, dim: int = 10, heads: int = 5) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError("heads do not divide the width")
        self.heads = heads
        self.layer = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.layer(x).view(x.shape[0], x.shape[1], self.heads, -1)
        y = (parts * parts.mean(-1, keepdim=True)).flatten(2)
        return y.view(y.shape[0], y.shape[1], ten(), -1).cumsum(2)


def ten() -> int:
    return 10


def test_a_number_is_tried_again_beside_what_is_followed(tmp_path: Path) -> None:
    """At another width four heads are taken; at width 10, which must stay, they are not, but ten are."""
    written, found = sized(Divided, {"x": real(2, 5, 10)}, tmp_path)
    assert found.changed == (("heads", 5, 10),)
    assert {one.name: one.value for one in found.held} == {"dim": 10}
    model, x = Divided(heads=2), real(3, 4, 10)
    assert_close(outputs(written, tmp_path / "net", model, {"x": x}, heads=2), model(x))


class Noisy(nn.Module):
    def __init__(self, dim: int = 12, latent: int = 5) -> None:
        super().__init__()
        self.encoder = nn.Linear(dim, 2 * latent)
        self.decoder = nn.Linear(latent, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, spread = self.encoder(x).chunk(2, dim=-1)
        return self.decoder(mean + torch.randn_like(mean) * torch.exp(0.5 * spread))


def test_a_model_that_draws_follows_its_sizes(tmp_path: Path) -> None:
    """Both sides are given the same draws, so that there is something to compare."""
    _, sizes = sized(Noisy, {"x": real(3, 12)}, tmp_path)
    assert {name for name, _, _ in sizes.changed} == {"dim", "latent"}
    assert not sizes.held
    assert sizes.distance is not None
    assert sizes.distance < 1e-5


def test_a_reason_says_what_the_port_does_without_our_classes(tmp_path: Path) -> None:
    unfit = MappingFileError(str(tmp_path / "mapping.yaml"), ["fc.weight: shape (3, 4)"], "edit it")
    for error, reason in (
        (unfit, "does not take the original's weights there: fc.weight: shape (3, 4)"),
        (ValueError("dim=20: 12 only"), "raises ValueError: dim=20: 12 only"),
        (
            MappingFileError("m.yaml", ["rnn.weight_ih_l1 is matched by no rule"], "edit it"),
            "has no place for rnn.weight_ih_l1: the number of layers of `rnn` is fixed in modeling.py",
        ),
        (
            ValueError(
                "params/fc/bias has the shape [4], Net's has [3]; give the config of its size"
            ),
            "has the size [3] of `fc/bias` written as a number in modeling.py, the original has [4] there",
        ),
        (
            ScopeParamShapeError("kernel", "/fc", (3, 20), (3, 12)),
            "has the size [3, 12] of `fc/kernel` written as a number in modeling.py, the original has "
            "[3, 20] there",
        ),
        (
            ValueError("Net lacks params/b_2/bias; give the config of its size"),
            "has other layers than the original there: it lacks params/b_2/bias",
        ),
    ):
        with pytest.raises(PortRefusesError) as caught, refused(tmp_path):
            raise error
        assert str(caught.value) == reason


def test_a_rate_is_tried_in_training_and_every_setting_is_somewhere(tmp_path: Path) -> None:
    written, found = sized(Dropped, {"x": real(2, 5, 6)}, tmp_path)
    assert [name for name, *_ in found.rates] == ["share"]
    assert {one.name: one.value for one in found.held} == {"hidden": 0.2, "off": 0.0}
    assert all("training drops other shares than the original" in one.why for one in found.held)
    assert "rows" in {name for name, *_ in (*found.unread, *found.changed)}
    with package_of(tmp_path / "net") as package:
        config = getattr(package, written.config_class)
        assert config(share=0.0).share == 0.0
        loaded = package.load_params(param_dtype="bfloat16")  # as docs/port/dtypes.md says
        dtypes = {array.dtype.name for array in jax.tree.leaves(loaded["params"])}
        assert dtypes == {"bfloat16"}
        model = package.Dropped(config(), param_dtype="bfloat16")
        assert model.apply(loaded, jnp.ones((2, 5, 6), "bfloat16")).dtype == "float32"
        with pytest.raises(ValueError, match=r"hidden=0\.5: modeling\.py supports 0\.2 only"):
            config(hidden=0.5)


class Pooling(nn.Module):
    """Layers of torch whose weights lie by their heads or groups, as many as a head is wide."""

    def __init__(self, dim: int = 16, heads: int = 4, groups: int = 2) -> None:
        super().__init__()
        self.heads, self.width = heads, dim // heads
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.up = nn.ConvTranspose1d(dim, dim, 2, stride=2, groups=groups)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = (*x.size()[:-1], self.heads, self.width)
        parts = x.view(*shape)
        means = parts.mean(2, keepdim=True)
        parts = parts * means
        x = parts.view(x.shape[0], x.shape[1], self.heads * self.width)
        y, _ = self.attn(x, x, x, need_weights=False)
        return self.up(y.transpose(1, 2))


class Growing(nn.Module):
    """A rate of its own."""

    def __init__(self, dim: int, rate: float) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(dim, dim), nn.Dropout(rate)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(torch.tanh(self.layer(x)))


class Rates(nn.Module):
    """Rates that grow from layer to layer, told in one of four ways."""

    way = 0

    def __init__(self, dim: int = 6, depth: int = 4, rate: float = 0.3) -> None:
        super().__init__()
        steps = [x.item() for x in torch.linspace(0, rate, depth)]
        rates = [rate * i / (depth - 1) for i in range(depth)]
        if self.way == 0:
            self.layers = nn.ModuleList(
                Growing(dim, rate * at / max(depth - 1, 1)) for at in range(depth)
            )
        elif self.way == 1:
            self.layers = nn.ModuleList([Growing(dim, steps[at]) for at in range(depth)])
        elif self.way == 2:
            self.layers = nn.ModuleList([Growing(dim, each) for each in rates])
        else:
            self.layers = nn.ModuleList()
            for at in range(depth):
                share = rate * at / (depth - 1)
                self.layers.append(Growing(dim, share))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_weights_that_lie_by_heads_and_groups_follow_their_sizes(tmp_path: Path) -> None:
    _, found = sized(Pooling, {"x": real(2, 5, 16)}, tmp_path)
    assert {name for name, *_ in found.changed} == {"dim", "heads", "groups"}
    mapping = (tmp_path / "net" / "mapping.yaml").read_text()
    for line in (
        "\n  heads: 4\n",
        "\n  groups: 2\n",
        "part: share(0, 1, 3)",
        "transpose(1, 0) | split(1, heads, -1)",
        "split(0, groups, -1) | transpose(3, 1, 0, 2) | merge(2, groups, -1)",
    ):
        assert line in mapping


@pytest.mark.parametrize("way", range(4))
def test_rates_that_grow_follow_depth_and_rate(
    way: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rates, "way", way)
    inputs = {"x": real(2, 6)}
    written, found = sized(Rates, inputs, tmp_path, seen_arguments=True)
    assert {name for name, *_ in found.changed} == {"dim", "depth"}
    assert [name for name, *_ in found.rates] == ["rate"]
    assert "for i in range(self.config.depth)" in written.modeling
    arguments = {"": {"dim": 6, "depth": 4, "rate": 0.3}}
    with pytest.raises(GraphError, match="its layers differ by their number"):
        port(Rates(), inputs, repeats=Repeats(scan=True), arguments=arguments)
    remat = port(Rates(), inputs, repeats=Repeats(remat="nothing"), arguments=arguments)
    assert "for i in range(self.config.depth)" in remat.modeling
    nnx = port(Rates(), inputs, api="nnx", arguments=arguments)
    assert "for i in range(config.depth)" in nnx.modeling


class Shift(nn.Module):
    def __init__(self, cond: int, channels: int) -> None:
        super().__init__()
        self.proj = nn.Linear(cond, 2 * channels)

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        g, b = self.proj(c)[:, :, None].chunk(2, dim=1)
        return x * (1 + g) + b


class StemBlock(nn.Module):
    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(cin, cout, 3, padding=1)
        self.shift = Shift(6, cout)

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.shift(self.conv(x), c))


class Stem(nn.Module):
    """Blocks whose widths are pairs of a list that the constructor joins; only the first is given rows."""

    def __init__(
        self, bands: int = 7, widths: tuple[int, ...] = (8, 10), gated: bool = True
    ) -> None:
        super().__init__()
        joined = (bands,) + tuple(widths)  # noqa: RUF005
        self.blocks = nn.ModuleList(
            StemBlock(a, b)
            for a, b in zip(joined, joined[1:], strict=False)  # noqa: RUF007
        )
        self.head = nn.Linear(joined[-1], 8 if gated else 4)
        self.gated = gated

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        x = x.transpose(1, 2)
        for block in self.blocks:
            x = block(x, c)
        x = self.head(x.transpose(1, 2))
        return nn.functional.glu(x, -1) if self.gated else x


def test_classes_that_differ_in_numbers_and_layout_are_one(tmp_path: Path) -> None:
    inputs = {"x": real(2, 9, 7), "c": real(2, 6)}
    written, found = sized(Stem, inputs, tmp_path, seen_arguments=True)
    assert written.modeling.count("class StemBlock") == 1
    assert ".swapaxes" not in written.modeling.partition("class Shift")[2]
    assert "self.config.widths[i]" in written.modeling
    assert {name for name, _, _ in found.changed} == {"bands", "widths"}
    # A choice is a field, so that the other value is refused by name.
    assert {one.name: one.value for one in found.held} == {"gated": True}
    assert "with the other value the original is another model" in found.held[0].why
    with package_of(tmp_path / "net") as package:
        config = getattr(package, written.config_class)
        with pytest.raises(ValueError, match=r"gated=False: modeling\.py supports True only"):
            config(gated=False)
    other = Stem(bands=11, widths=(12, 6))
    inputs["x"] = real(2, 9, 11)
    theirs = outputs(written, tmp_path / "net", other, inputs, bands=11, widths=(12, 6))
    assert_close(theirs, other(**inputs))
    with package_of(tmp_path / "net") as package:
        config = getattr(package, written.config_class)(bands=11, widths=(12, 6))
        model = getattr(package, written.model_class)(config)
        arrays = {name: jnp.asarray(tensor.numpy()) for name, tensor in inputs.items()}
        params = model.init(jax.random.key(0), **arrays)["params"]
    bound = (11 * 3) ** -0.5  # torch's for the bias of the first block at this size
    assert 0.7 * bound < float(jnp.abs(params["blocks_0"]["conv"]["bias"]).max()) <= bound
    bound = 6**-0.5
    assert 0.5 * bound < float(jnp.abs(params["head"]["bias"]).max()) <= bound
    # The package makes the inputs of that size, and `init` is compared there.
    assert found.tied == {("x", 2): "bands"}
    file = tmp_path / "net" / "__init__.py"
    file.write_text(with_tied_inputs(file.read_text(), written.config_class, found.tied))
    with package_of(tmp_path / "net") as package:
        config = getattr(package, written.config_class)(bands=11)
        assert package.model_shapes(config)["params/blocks_0/conv/kernel"] == (3, 11, 8)
    assert found.there is not None
    asked = (tmp_path / "net", written, 4, found.there, "net", None)
    uniform = {"params/blocks_#/conv/bias"}
    assert not drawn_there(*asked, tmp_path, uniform)
    source = tmp_path / "net" / "modeling.py"
    source.write_text(source.read_text().replace("(self.cin * 3) ** -0.5", "4.0"))
    (tmp_path / "again").mkdir()
    assert set(drawn_there(*asked, tmp_path / "again", uniform)) == {
        f"params/blocks_{at}/conv/bias" for at in (0, 1)
    }


def test_init_of_an_nnx_port_is_compared_at_the_second_size(tmp_path: Path) -> None:
    inputs = {"x": real(2, 9, 7), "c": real(2, 6)}
    written, found = sized(Stem, inputs, tmp_path, seen_arguments=True, api="nnx")
    assert {name for name, _, _ in found.changed} == {"bands", "widths"}
    assert found.there is not None
    asked = (tmp_path / "net", written, 4, found.there, "net", None)
    uniform = {"blocks/#/conv/bias"}
    assert not drawn_there(*asked, tmp_path, uniform)
    source = tmp_path / "net" / "modeling.py"
    source.write_text(source.read_text().replace("(cin * 3) ** -0.5", "4.0"))
    (tmp_path / "again").mkdir()
    assert set(drawn_there(*asked, tmp_path / "again", uniform)) == {
        f"blocks/{at}/conv/bias" for at in (0, 1)
    }


class Listed(nn.Module):
    """As many layers as a list has entries; a scale that no output shows; a loop over another list."""

    def __init__(
        self,
        widths: tuple[int, ...] = (6, 10, 8),
        scale: float = 1e-5,
        shares: tuple[float, ...] = (0.2, 0.7),
    ) -> None:
        super().__init__()
        self.shares = shares
        self.layers = nn.ModuleList(
            [nn.Linear(a, b) for a, b in zip(widths[:-1], widths[1:], strict=True)]  # noqa: RUF007
        )
        self.gain = nn.Parameter(scale * torch.ones(widths[-1]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        y = self.gain * x
        for share in self.shares:
            y = (1 - share) * y.roll(1, -1) + x
        return y


def test_a_list_s_length_and_a_scale_of_initial_values_are_proven(tmp_path: Path) -> None:
    written, found = sized(Listed, {"x": real(2, 6)}, tmp_path, seen_arguments=True)
    assert {name for name, _, _ in found.changed} == {"widths", "shares"}
    assert found.starts == (("scale", 1e-5, 4e-5),)
    assert [name for name, *_ in found.lengths] == ["widths"]
    assert not found.held
    assert "for i in range(len(self.config.widths) - 1)" in written.modeling
    assert '"shares": 2' in written.config.replace("'", '"')
    assert "widths" not in written.config.partition("class")[0]
    model, x = Listed((6, 9, 7, 5, 4)), real(2, 6)
    found_outputs = outputs(written, tmp_path / "net", model, {"x": x}, widths=(6, 9, 7, 5, 4))
    assert_close(found_outputs, model(x))


class Rescaled(nn.Module):
    """Initial values that fall from layer to layer, as those of BEiT; a factor that grows."""

    class Layer(nn.Module):
        def __init__(self, dim: int, place: int) -> None:
            super().__init__()
            self.mix = nn.Linear(dim, dim)
            self.blend = 0.8 - 0.6 * math.exp(-0.3 * place)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.blend * torch.tanh(self.mix(x))

    def __init__(self, dim: int = 6, depth: int = 3, std: float = 0.02) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Rescaled.Layer(dim, i) for i in range(depth)])
        for number, layer in enumerate(self.layers):
            nn.init.trunc_normal_(layer.mix.weight, std=std)
            layer.mix.weight.data.div_(math.sqrt(2.0 * (number + 1)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_initial_values_that_fall_by_layer_are_one_loop(tmp_path: Path) -> None:
    written, found = sized(Rescaled, {"x": real(2, 6)}, tmp_path, seen_arguments=True)
    assert {"dim", "depth"} <= {name for name, _, _ in found.changed}
    assert found.starts == (("std", 0.02, 0.08),)
    assert not found.held
    assert "scaled_by(trunc_normal(self.config.std), self.scale)" in written.modeling
    assert "scale=1.0 / math.sqrt(2.0 * (i + 1))" in written.modeling
    assert "blend=0.8 - 0.6 * math.exp(-0.3 * i)" in written.modeling
    assert "for i in range(self.config.depth)" in written.modeling
