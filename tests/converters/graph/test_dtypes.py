"""A port computes in the dtype of its weights, and in float32 where the original does."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from converters.graph import Port, port
from converters.graph.recording.precision import MixedProducts, in_compute_dtype, narrowed
from tests.converters.graph.flax_side import Inputs, variables


class Norm(nn.Module):
    """A norm whose variance is float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        input_dtype = hidden.dtype
        hidden = hidden.to(torch.float32)
        hidden = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * hidden.to(input_dtype)


class Rotary(nn.Module):
    """A table of angles, in float32 whatever the model computes in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        steps = torch.arange(0, width, 2) / width
        self.register_buffer("inv_freq", 1.0 / 100.0**steps, persistent=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = torch.arange(x.shape[1])[:, None].float() * self.inv_freq
        angles = torch.cat([angles, angles], -1)
        return angles.cos().to(x.dtype), angles.sin().to(dtype=x.dtype)


class Attention(nn.Module):
    """Attention that is written out: a mask of the dtype's least number, a softmax in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.sink = nn.Parameter(torch.randn(1))

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q = q * cos + torch.cat([-q[..., 3:], q[..., :3]], -1) * sin
        k = k * cos + torch.cat([-k[..., 3:], k[..., :3]], -1) * sin
        scores = q @ k.transpose(1, 2) * 0.4 + mask
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        return weights @ v * torch.exp(self.sink.float()).to(x.dtype)


class Tokens(nn.Module):
    """Token ids, so that no input shows the dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.rotary, self.norm, self.attention = Rotary(6), Norm(6), Attention(6)
        self.head = nn.Linear(6, 5)

    def forward(self, ids: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(ids)
        hidden = hidden * torch.tensor(6**0.5, dtype=hidden.dtype)
        mask = torch.zeros(ids.shape[0], 1, ids.shape[1], dtype=hidden.dtype)
        mask = mask.masked_fill(~seen[:, None], torch.finfo(hidden.dtype).min)
        cos, sin = self.rotary(hidden)
        hidden = hidden + self.attention(self.norm(hidden), cos, sin, mask)
        return self.head(hidden)


def _angles(steps: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
    speeds = torch.exp(-math.log(50.0) * torch.arange(width // 2) / (width // 2))
    found = steps.float()[:, None] * speeds
    return torch.cat([found.sin(), found.cos()], -1).to(dtype)


class Timed(nn.Module):
    """A function without a tensor that shows the dtype, and a router in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 6)
        self.router = nn.Parameter(torch.randn(3, 6))
        self.scale = nn.Parameter(torch.rand(6))

    def forward(self, steps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = F.gelu(self.first(_angles(steps, 8, self.first.weight.dtype)))
        logits = F.linear(hidden.float(), self.router.float())
        return hidden * self.scale, logits.sigmoid()


class Angles(nn.Module):
    """Angles in float32 that meet weights: torch raises outside of autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, 6), nn.SiLU(), nn.Linear(6, 6))
        self.conv = nn.Conv1d(1, 2, 3, padding=1)
        self.mix = nn.Parameter(torch.randn(8, 6))

    def forward(self, x: torch.Tensor, steps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = _angles(steps, 8, torch.float32)
        hidden = x + self.time(angles)
        waves = self.conv(angles[:, None])
        return torch.einsum("bcw,bh->bch", waves, hidden), hidden * (angles @ self.mix)


class Layers(nn.Module):
    """Layers that Flax lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(5, 6, batch_first=True)
        self.act = nn.PReLU(6)
        self.mixed = nn.Bilinear(6, 5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.rnn(x)
        return self.mixed(self.act(y.transpose(1, 2)).transpose(1, 2), x)


class Wide(nn.Module):
    """A function that computes in float32, among the layers of a Sequential."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float().sin().type_as(x)


class Recurrent(nn.Module):
    """An LSTM of two directions, whose gates torch computes in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 6, batch_first=True, bidirectional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]


class Masked(nn.Module):
    """A norm without an epsilon of its own, and an attention of which a row sees nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q = F.rms_norm(self.q(x), (8,))[:, None]
        least = torch.finfo(q.dtype).min
        bias = torch.zeros(x.shape[0], 1, 7, 7, dtype=q.dtype)
        bias = bias.masked_fill(~seen[:, None, None, :], least)
        truth = F.scaled_dot_product_attention(q, q, q, attn_mask=seen[:, None, None, :])
        return truth, F.scaled_dot_product_attention(q, q, q, attn_mask=bias)


class Normed(nn.Module):
    """A layer whose weights are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.utils.parametrizations.weight_norm(nn.Linear(6, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


class Narrow(nn.Module):
    """Chooses 16 bits by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x).to(torch.bfloat16).float()
        return y + self.table[:4].float() if hasattr(self, "table") else y


def real(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def ids(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(1))


_SEEN = torch.tensor([[True] * 7, [True] * 4 + [False] * 3, [False] * 7])
CASES: dict[str, tuple[Callable[[], nn.Module], Inputs]] = {
    "tokens": (Tokens, {"ids": ids(11, 3, 7), "seen": _SEEN}),
    "timed": (Timed, {"steps": ids(90, 64)}),
    "angles": (Angles, {"x": real(16, 6), "steps": ids(90, 16)}),
    "masked": (Masked, {"x": real(3, 7, 8), "seen": _SEEN}),
    "normed": (Normed, {"x": real(64, 6)}),
    "layers": (Layers, {"x": real(4, 9, 5)}),
    "sequential": (
        lambda: nn.Sequential(Wide(), nn.Linear(5, 4), Wide(), nn.Linear(4, 3)),
        {"input": real(16, 5)},
    ),
    "recurrent": (Recurrent, {"x": real(4, 9, 5)}),
    "pooled": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.AvgPool2d(3, 1, padding=1, count_include_pad=False),
            nn.Conv2d(4, 4, 1),
        ),
        {"input": real(2, 3, 9, 9)},
    ),
}


def made(name: str) -> tuple[nn.Module, Inputs, Port]:
    torch.manual_seed(0)
    factory, inputs = CASES[name]
    model = factory().eval()
    return model, inputs, port(model, inputs)


def arrays(inputs: Inputs) -> dict[str, Any]:
    """The inputs in bfloat16."""
    found = {name: jnp.asarray(one.numpy()) for name, one in inputs.items()}
    return {name: halved(one) for name, one in found.items()}


def halved(array: Any) -> Any:
    return array.astype(jnp.bfloat16) if array.dtype == jnp.float32 else array


def of_torch(model: nn.Module, inputs: Inputs) -> list[torch.Tensor]:
    with in_compute_dtype(model), torch.no_grad(), MixedProducts():
        return list(jax.tree.leaves(model(**narrowed(inputs))))


def rounded(model: nn.Module, inputs: Inputs) -> list[Any]:
    """What it gives in float32 with the rounded weights and inputs."""
    before = {name: one.clone() for name, one in model.state_dict().items()}
    with torch.no_grad():
        for one in model.parameters():
            one.copy_(one.to(torch.bfloat16))
        given = {
            name: one.float() if one.is_floating_point() else one
            for name, one in narrowed(inputs).items()
        }
        found = [one.numpy() for one in jax.tree.leaves(model(**given))]
    model.load_state_dict(before)
    return found


def apart(one: Any, truth: Any) -> float:
    return float(np.linalg.norm(np.asarray(one, np.float32) - truth) / np.linalg.norm(truth))


def multiplied(jaxpr: Any) -> list[str]:
    """The dtypes of what products multiply."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            found.append("×".join(one.aval.dtype.name for one in equation.invars))
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            found += multiplied(inner)
    return found


@pytest.mark.parametrize("mixed", [False, True], ids=["bfloat16", "float32 weights"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.long_cases(
    "layers-bfloat16",
    "masked-float32 weights",
    "angles-float32 weights",
    "timed-float32 weights",
    "timed-bfloat16",
    "recurrent-float32 weights",
    "recurrent-bfloat16",
    "tokens-float32 weights",
    "layers-float32 weights",
)
def test_its_error_in_bfloat16_is_torch_s_own(
    name: str, mixed: bool, load: Callable[[Port], Any]
) -> None:
    model, inputs, written = made(name)
    flax, weights = load(written), variables(model, written, inputs)
    if mixed:
        flax = flax.clone(dtype=jnp.bfloat16)
        weights = {
            **weights,
            "params": jax.tree.map(lambda x: halved(x).astype(x.dtype), weights["params"]),
        }
    else:
        flax = flax.clone(param_dtype=jnp.bfloat16)
        weights = {**weights, "params": jax.tree.map(halved, weights["params"])}
    outputs = jax.tree.leaves(jax.jit(flax.apply)(weights, **arrays(inputs)))
    theirs = of_torch(model, inputs)
    for mine, other, truth in zip(outputs, theirs, rounded(model, inputs), strict=True):
        assert str(other.dtype).endswith(mine.dtype.name)
        assert np.isfinite(np.asarray(mine, np.float32)).all() == bool(other.isfinite().all())
        assert apart(mine, truth) <= 1.5 * apart(other.float().numpy(), truth)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("tokens", ["bfloat16×bfloat16"] * 4),
        ("timed", ["bfloat16×bfloat16", "float32×float32"]),
        ("angles", ["bfloat16×bfloat16"] * 5),
    ],
)
def test_products_are_in_the_dtype_of_the_original(
    name: str, wanted: list[str], load: Callable[[Port], Any]
) -> None:
    model, inputs, written = made(name)
    weights = variables(model, written, inputs)
    weights = {**weights, "params": jax.tree.map(halved, weights["params"])}
    flax = load(written).clone(param_dtype=jnp.bfloat16)
    jaxpr = jax.make_jaxpr(flax.apply)(weights, **arrays(inputs))
    assert multiplied(jaxpr.jaxpr) == wanted


def test_its_source_follows_the_dtype_of_what_it_is_given() -> None:
    source = made("tokens")[2].modeling
    assert "hidden = hidden.astype(jnp.float32)" in source
    assert "return self.weight * hidden.astype(input_dtype)" in source
    assert "jnp.finfo(hidden.dtype).min" in source
    assert re.search(r"cos, sin = self\.rotary\(.*, hidden\.dtype\)", source)
    assert "2.449489" in source  # all digits, not those of bfloat16
    assert "self.head = nn.Dense(5, **self.numerics)" in source
    # A weight that is only read in float32 is not rounded first.
    assert "self.sink = self.param('sink'" in source
    assert "self.weight = self.cast_param" in source


def test_a_class_that_computes_nothing_in_it_has_no_dtype() -> None:
    source = made("tokens")[2].modeling
    assert "class Rotary(nn.Module):" in source
    assert "class Norm(Module):" in source


def test_a_model_that_chooses_16_bits_is_recorded_as_it_is() -> None:
    model = Narrow().eval()
    model.register_buffer("table", torch.rand(64).bfloat16(), persistent=False)
    written = port(model, {"x": real(2, 4)})
    [table] = (
        written.constants.values()
    )  # no checkpoint has it, and NumPy has no bfloat16 of its own
    assert table.dtype == "bfloat16"
    assert np.array_equal(table.astype(np.float32), model.table.float().numpy())
    assert written.same_dtype == "the original computes in 16 bits by itself"
    assert any("no `dtype`" in note for note in written.notes)
    assert ".astype(jnp.bfloat16)" in written.modeling


def test_its_inputs_are_those_that_it_was_given() -> None:
    assert [one.dtype for one in made("masked")[2].inputs] == ["float32", "bool"]


def test_the_module_is_as_it_was_when_it_is_recorded() -> None:
    torch.manual_seed(0)
    model = Tokens().eval()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    port(model, CASES["tokens"][1])
    for name, one in model.state_dict().items():
        assert one.dtype == before[name].dtype
        assert torch.equal(one, before[name])


class Standardized(nn.Module):
    """Statistics that a checkpoint has, and a table that it does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("spread", torch.linspace(1, 1.7, 6) ** 3)
        self.register_buffer("table", torch.rand(6), persistent=False)
        self.layer = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = (x - self.mean) / self.spread
        return self.layer(x), (x.float() * self.table).to(x.dtype)


@pytest.mark.long_cases("nnx")
@pytest.mark.parametrize("api", ["linen", "nnx"])
def test_buffers_that_torch_saves_start_in_the_dtype_of_the_weights(
    api: Any, load: Callable[[Port], Any]
) -> None:
    x = torch.rand(2, 6)
    written = port(Standardized().eval(), {"x": x}, api=api)
    if api == "nnx":
        assert written.modeling.count(", self.param_dtype))") == 2
        return
    model = load(written).clone(param_dtype=jnp.bfloat16)
    given = jnp.asarray(x.numpy(), jnp.bfloat16)
    outputs, values = model.init_with_output(jax.random.key(0), given)
    buffers = {name: one.dtype.name for name, one in values["buffers"].items()}
    assert buffers == {"mean": "bfloat16", "spread": "bfloat16", "table": "float32"}
    assert [one.dtype.name for one in outputs] == ["bfloat16", "bfloat16"]
