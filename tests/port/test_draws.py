"""Models that draw in their forward: the port draws with keys, and both sides are fed the same draws."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (its usual name)

from converters import convert_to_pytree
from converters.graph import Port, port
from migrate.parity.ground.draws import Draws
from migrate.parity.sides.jax.draws import drawn
from migrate.parity.sides.torch.draws import ComparisonDraws
from tests.converters.graph import trained


class Variational(nn.Module):
    """A function of its own draws."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 8)
        self.out = nn.Linear(4, 3)

    def reparameterize(self, mu: torch.Tensor, log_var: torch.Tensor) -> torch.Tensor:
        std = torch.exp(0.5 * log_var)
        eps = torch.randn_like(std)
        return mu + eps * std

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mu, log_var = self.fc(x).chunk(2, dim=-1)
        return self.out(self.reparameterize(mu, log_var)), mu, log_var


class Noise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.5 * torch.randn_like(x)


class Repeating(nn.Module):
    """Draws the same again and again, in a Sequential and turn by turn."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 4), Noise(), nn.ReLU(), Noise())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.net(x)
        states, state = [], torch.zeros_like(x[:, 0])
        for turn in range(4):
            state = torch.tanh(state + x[:, turn] + torch.randn_like(state))
            states.append(state)
        return torch.stack(states, 1)


class LeftOn(nn.Module):
    """Dropout in evaluation, of elements and of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.dropout(self.fc(x), 0.3, training=True)
        return F.dropout1d(x[:, :, None].expand(-1, -1, 3), 0.4, training=True)


class Diffused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(7, 6)
        self.register_buffer("kept", torch.linspace(0.9, 0.1, 10))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        step = torch.randint(0, 10, (x.shape[0],), device=x.device)
        noise = torch.randn_like(x)
        share = self.kept[step][:, None]
        mixed = share.sqrt() * x + (1 - share).sqrt() * noise
        found = self.net(torch.cat([mixed, step[:, None].float()], -1))
        return F.mse_loss(found, noise), found


class Chosen(nn.Module):
    """Other distributions; normal's mean gets no gradient."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        places = torch.argsort(torch.rand((x.shape[0], 6), generator=None), 1)[:, :3]
        turned = x[:, torch.randperm(x.shape[1])]
        kept = turned * torch.bernoulli(torch.full_like(x, 0.4))
        wide = torch.empty(x.shape[0], 1).uniform_(-2, 3)
        one = torch.multinomial(torch.softmax(x, -1), 1)
        some = torch.multinomial(torch.softmax(x, -1), 3)
        again = torch.multinomial(torch.softmax(x, -1), 4, replacement=True)
        waits = torch.empty_like(x).exponential_(2.0)
        grown = torch.empty_like(x).log_normal_(0.1, 0.2)
        return (
            torch.gather(x, 1, places),
            kept + wide,
            one,
            some,
            again,
            waits,
            grown,
            torch.normal(x, 0.2),
        )


class Distributions(nn.Module):
    """Checks its parameters, which would be branches on values."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, spread = self.fc(x).chunk(2, -1)
        found = torch.distributions.Normal(mean, F.softplus(spread) + 1e-3)
        plain = torch.distributions.Normal(0.0, 1.0)
        return found.rsample(), torch.distributions.kl_divergence(found, plain).sum(-1)


class Image(nn.Module):
    """Draws for what lies channels last in the port."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        return self.second(F.dropout2d(x + torch.randn_like(x), 0.4, training=True))


X, PICTURE = (3, 6), (2, 3, 6, 5)
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "variational": (Variational, X),
    "repeating": (Repeating, (2, 4, 6)),
    "left on": (LeftOn, X),
    "diffused": (Diffused, X),
    "chosen": (Chosen, X),
    "distributions": (Distributions, X),
    "image": (Image, PICTURE),
}


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """A port → its model."""
    names: list[str] = []

    def run(made: Port, text: str | None = None) -> Any:
        name = f"a_port_that_draws_{len(names)}"
        names.append(name)
        folder = tmp_path / name
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        (folder / "modeling.py").write_text(text or made.modeling)
        (folder / "config.py").write_text(made.config)
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        modeling = importlib.import_module(f"{name}.modeling")
        config = importlib.import_module(f"{name}.config")
        cls = getattr(modeling, made.model_class)
        sizes = getattr(config, made.config_class)()
        return cls(sizes) if "config" in cls.__dataclass_fields__ else cls()

    yield run
    for name in [one for one in sys.modules if one.startswith("a_port_that_draws_")]:
        del sys.modules[name]


def ported(name: str) -> tuple[nn.Module, torch.Tensor, Port]:
    torch.manual_seed(0)
    make, shape = CASES[name]
    model, x = make().eval(), torch.randn(shape)
    return model, x, port(model, {"x": x})


def weights(model: nn.Module, x: torch.Tensor) -> dict[str, Any]:
    if not model.state_dict():
        return {}
    made: dict[str, Any] = convert_to_pytree(
        model.state_dict(), model=model, example=[tuple(x.shape)]
    )
    return jax.tree.map(jnp.asarray, made)


def distance(
    flax: Any, variables: dict[str, Any], model: nn.Module, x: torch.Tensor, streams: Any
) -> float:
    """The largest relative distance of an output, or of the gradient of the input."""
    given = x.clone().requires_grad_()
    with ComparisonDraws(Draws(0)):
        wanted = model(given)
    wanted = list(wanted) if isinstance(wanted, tuple) else [wanted]
    real = [one.sum() for one in wanted if one.requires_grad]
    sum(real[1:], real[0]).backward()
    rngs = {name: jax.random.key(0) for name in streams}

    def run(x: Any) -> tuple[Any, list[Any]]:
        with drawn(Draws(0)):
            found = flax.apply(variables, x, rngs=rngs)
        found = list(found) if isinstance(found, tuple) else [found]
        return sum(one.sum() for one in found if one.dtype.kind == "f"), found

    array = jnp.asarray(x.numpy())
    with jax.default_matmul_precision("highest"):
        (_, found), gradient = jax.jit(jax.value_and_grad(run, has_aux=True))(array)
    assert given.grad is not None
    pairs = [
        (np.asarray(one), other.detach().numpy()) for one, other in zip(found, wanted, strict=True)
    ]
    pairs.append((np.asarray(gradient), given.grad.numpy()))
    return max(
        float(np.linalg.norm((one - other).ravel()) / max(float(np.linalg.norm(other)), 1e-30))
        for one, other in pairs
    )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.long_cases("distributions")
def test_both_sides_compute_the_same_of_the_same_draws(name: str, load: Callable[..., Any]) -> None:
    model, x, made = ported(name)
    assert not made.missing
    assert made.streams
    assert "lax.scan" not in made.modeling  # each of its turns would draw the same
    assert distance(load(made), weights(model, x), model, x, made.streams) < 2e-6


def test_a_port_that_draws_otherwise_differs(load: Callable[..., Any]) -> None:
    model, x, made = ported("variational")
    assert "jax.random.normal(" in made.modeling
    other = made.modeling.replace("jax.random.normal(", "jax.random.uniform(")
    assert distance(load(made, other), weights(model, x), model, x, made.streams) > 0.01


def test_keys_come_from_the_caller(load: Callable[..., Any]) -> None:
    model, x, made = ported("repeating")
    assert made.streams == ("noise",)
    flax, variables, array = load(made), weights(model, x), jnp.asarray(x.numpy())
    one, same, other = (
        flax.apply(variables, array, rngs={"noise": jax.random.key(seed)}) for seed in (0, 0, 1)
    )
    assert bool((one == same).all())
    assert not bool((one == other).any())


def test_a_function_that_draws_is_given_a_key() -> None:
    _, _, made = ported("variational")
    assert "def reparameterize(mu: Array, log_var: Array, key: Array)" in made.modeling
    assert "reparameterize(mu, log_var, self.make_rng('noise'))" in made.modeling


def test_training_draws_beside_what_both_modes_draw(load: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    model, x = trained.Sampled().eval(), torch.randn(16, 4)
    made = port(model, {"x": x})
    assert not made.refused
    assert made.trains
    assert made.statistics
    assert set(made.streams) == {"noise", "dropout"}
    assert distance(load(made), weights(model, x), model, x, made.streams) < 2e-6
    flax, variables = load(made), weights(model, x)

    def run(seed: int) -> Any:
        """Training with the same noise; the dropouts draw."""
        rngs = {"noise": jax.random.key(0), "dropout": jax.random.key(seed)}
        options: dict[str, Any] = {"rngs": rngs, "mutable": ["batch_stats"]}
        return flax.apply(variables, jnp.asarray(x.numpy()), deterministic=False, **options)

    (one, changed), (other, _) = run(0), run(1)
    assert not np.allclose(one, other)
    assert np.any(np.asarray(changed["batch_stats"]["norm"]["mean"]))


@pytest.mark.parametrize("make", [trained.OneLine, trained.AlwaysAttends])
def test_draws_that_only_partly_depend_on_the_mode_are_refused(
    make: Callable[[], nn.Module],
) -> None:
    made = port(make().eval(), {"x": torch.randn(3, 4)})
    assert made.refused.startswith("it draws other random numbers in evaluation (trained.py:")
    assert not made.trains
    assert bool(made.missing) == (make is trained.AlwaysAttends)  # evaluation drops its weights too


SPREADS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "normal": (torch.randn_like, "jax.random.normal(key, x.shape)"),
    "uniform": (torch.rand_like, "jax.random.uniform(key, x.shape)"),
    "exponential": (
        lambda x: torch.empty_like(x).exponential_(),
        "jax.random.exponential(key, x.shape)",
    ),
    "bernoulli": (lambda x: torch.bernoulli(x, 0.3), "jax.random.bernoulli(key, 0.3, x.shape)"),
    "integers": (lambda x: torch.randint_like(x, 7), "jax.random.randint(key, x.shape, 0, 7)"),
}


@pytest.mark.parametrize("name", SPREADS)
def test_jax_draws_from_the_same_distribution(name: str) -> None:
    """What a port calls, and the draws of a comparison, are spread as torch's own draws."""
    make, text = SPREADS[name]
    torch.manual_seed(0)
    x = torch.zeros(20_000)
    own = make(x).double().numpy()
    with ComparisonDraws(Draws(0)):
        ours = make(x).double().numpy()
    key = jax.random.key(0)
    theirs = np.asarray(eval(text, {"jax": jax, "key": key, "x": jnp.zeros(20_000)}), np.float64)
    for found in (ours, theirs):
        spread = own.std() / np.sqrt(own.size)
        assert abs(found.mean() - own.mean()) < 8 * spread
        assert abs(found.std() / own.std() - 1) < 0.05
        assert abs(found.min() - own.min()) < 0.5 + (name == "normal")
