"""Training goes on in JAX as it would have in torch: 20 more steps on both sides, the same losses."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
import transformers
from flax import linen, nnx
from torch import nn

from converters import convert_to_pytree, plan
from converters.optimizer.convert import convert_optimizer, optimizer_to_torch
from converters.optimizer.load import load_optimizer, save_optimizer

RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((8, 3, 5, 6)).astype(np.float32)
TARGETS = RNG.standard_normal((8, 4)).astype(np.float32)
STEPS = 20


@pytest.fixture(autouse=True)
def _without_torch_xla(monkeypatch):
    """Have transformers, which looks for torch_xla by importing it, not look."""
    monkeypatch.setattr("transformers.utils.import_utils.USE_TORCH_XLA", "0")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 5, (2, 3))
        self.hidden = nn.Linear(5, 7)
        self.head = nn.Linear(7, 4)

    def forward(self, x):
        x = torch.tanh(self.conv(x)).mean((2, 3))
        return self.head(torch.tanh(self.hidden(x)))


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = jnp.tanh(linen.Conv(5, (2, 3), padding="VALID", name="conv")(x)).mean((1, 2))
        return linen.Dense(4, name="head")(jnp.tanh(linen.Dense(7, name="hidden")(x)))


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(3, 5, (2, 3), padding="VALID", rngs=rngs)
        self.hidden = nnx.Linear(5, 7, rngs=rngs)
        self.head = nnx.Linear(7, 4, rngs=rngs)

    def __call__(self, x):
        x = jnp.tanh(self.conv(x)).mean((1, 2))
        return self.head(jnp.tanh(self.hidden(x)))


class Lion(torch.optim.Optimizer):
    """As published: https://arxiv.org/abs/2302.06675, algorithm 2."""

    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for parameter in group["params"]:
                state = self.state[parameter]
                mean = state.setdefault("exp_avg", torch.zeros_like(parameter))
                update = (b1 * mean + (1 - b1) * parameter.grad).sign()
                parameter.sub_(group["lr"] * (update + group["weight_decay"] * parameter))
                mean.mul_(b2).add_(parameter.grad, alpha=1 - b2)


def decays(model):
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    return [
        {"params": matrices, "weight_decay": 0.1},
        {"params": vectors, "weight_decay": 0.0, "lr": 3e-3},
    ]


OPTIMIZERS = {
    "sgd": (lambda m: torch.optim.SGD(m.parameters(), lr=0.05), "optax.sgd(0.05)"),
    "nesterov": (
        lambda m: torch.optim.SGD(
            m.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01
        ),
        "optax.chain(optax.add_decayed_weights(0.01), optax.sgd(0.05, momentum=0.9, nesterov=True))",
    ),
    "dampened": (
        lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, dampening=0.3),
        "optax.chain(optax.scale(0.7), optax.trace(decay=0.9), optax.scale_by_learning_rate(0.05))",
    ),
    "adam": (
        lambda m: torch.optim.Adam(m.parameters(), lr=2e-3, weight_decay=0.1, eps=1e-4),
        "optax.chain(optax.add_decayed_weights(0.1), "
        "optax.adam(0.002, b1=0.9, b2=0.999, eps=0.0001))",
    ),
    "adamw": (
        lambda m: torch.optim.AdamW(m.parameters(), lr=2e-3, betas=(0.8, 0.95), weight_decay=0.3),
        "optax.adamw(0.002, b1=0.8, b2=0.95, eps=1e-08, weight_decay=0.3)",
    ),
    "amsgrad": (
        lambda m: torch.optim.AdamW(m.parameters(), lr=5e-3, betas=(0.8, 0.9), amsgrad=True),
        "transforms.amsgradw(0.005, b1=0.8, b2=0.9, eps=1e-08, weight_decay=0.01)",
    ),
    "maximized": (
        lambda m: torch.optim.SGD(m.parameters(), lr=1e-4, momentum=0.5, maximize=True),
        "optax.chain(optax.scale(-1.0), optax.sgd(0.0001, momentum=0.5))",
    ),
    "groups": (
        lambda m: torch.optim.AdamW(decays(m), lr=2e-3),
        'optax.multi_transform({"group0": optax.adamw(0.002, b1=0.9, b2=0.999, eps=1e-08, '
        'weight_decay=0.1), "group1": optax.adamw(0.003, b1=0.9, b2=0.999, eps=1e-08, '
        "weight_decay=0.0)}, labels)",
    ),
    "lion": (
        lambda m: Lion(m.parameters(), 1e-3, (0.9, 0.99), 0.1),
        "optax.lion(0.001, b1=0.9, b2=0.99, weight_decay=0.1)",
    ),
    "adafactor": (
        lambda m: torch.optim.Adafactor(m.parameters(), lr=1e-2, weight_decay=0.1),
        "transforms.adafactor(leaves, 0.01, beta2_decay=-0.8, eps1=None, eps2=0.001, d=1.0, "
        "weight_decay=0.1)",
    ),
    "transformers' adafactor": (
        lambda m: transformers.Adafactor(m.parameters(), beta1=0.9, weight_decay=0.01),
        "transforms.hf_adafactor(leaves, None, eps=(1e-30, 0.001), clip_threshold=1.0, "
        "decay_rate=-0.8, beta1=0.9, weight_decay=0.01, scale_parameter=True, relative_step=True, "
        "warmup_init=False)",
    ),
}


def torch_steps(model, optimizer, steps):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = ((model(torch.from_numpy(IMAGES)) - torch.from_numpy(TARGETS)) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def jax_steps(apply, params, tx, state, steps):
    images = IMAGES.transpose(0, 2, 3, 1)

    @jax.jit
    def step(params, state):
        loss, grads = jax.value_and_grad(
            lambda params: ((apply(params, images) - TARGETS) ** 2).mean()
        )(params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    losses = []
    with jax.default_matmul_precision("highest"):
        for _ in range(steps):
            params, state, loss = step(params, state)
            losses.append(float(loss))
    return losses, params, state


def trained(make, steps=10):
    torch.manual_seed(0)
    model = Net()
    optimizer = make(model)
    torch_steps(model, optimizer, steps)
    return model, optimizer


def assert_same_state(found, expected):
    assert found["param_groups"] == expected["param_groups"]
    assert found["state"].keys() == expected["state"].keys()
    for position, entries in expected["state"].items():
        assert found["state"][position].keys() == entries.keys()
        for name, value in entries.items():
            other = found["state"][position][name]
            assert type(other) is type(value), name
            if isinstance(value, torch.Tensor):
                assert (other.dtype, other.shape) == (value.dtype, value.shape)
                assert torch.equal(other, value), name
            else:
                assert other == value, name


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.long_cases("adam", "transformers' adafactor", "amsgrad", "lion")
def test_20_more_steps_in_linen(name, tmp_path):
    make, text = OPTIMIZERS[name]
    model, optimizer = trained(make)
    path = tmp_path / "opt.safetensors"
    state_dict = optimizer.state_dict()
    weights = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    before = torch.load(_saved(state_dict, tmp_path), weights_only=False)
    done = convert_optimizer(before, plan=plan(weights, model=model), model=model, output=path)
    assert done.recipe.text == text
    assert_same_state(optimizer_to_torch(path), before)

    params = jax.tree.map(jnp.asarray, convert_to_pytree(weights, model=model)["params"])
    tx = done.recipe.build(params)
    state = load_optimizer(path, tx, params)
    expected = torch_steps(model, optimizer, STEPS)
    losses, params, state = jax_steps(
        lambda params, x: LinenNet().apply({"params": params}, x), params, tx, state, STEPS
    )
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert expected[-1] != pytest.approx(expected[0], rel=1e-4)  # there was something to follow

    # And back: torch goes on from JAX's state as from its own.
    later = save_optimizer(tmp_path / "later.safetensors", state, like=path)
    back = optimizer_to_torch(later)
    after = optimizer.state_dict()
    for position, entries in after["state"].items():
        for entry, value in entries.items():
            if entry == "step":
                assert back["state"][position]["step"] == value
            elif isinstance(value, torch.Tensor) and entry != "RMS":
                torch.testing.assert_close(
                    back["state"][position][entry], value, rtol=2e-3, atol=1e-5
                )
    optimizer.load_state_dict(back)


def _saved(state_dict, folder):
    torch.save(state_dict, folder / "opt.pt")
    return folder / "opt.pt"


@pytest.mark.parametrize("name", ["adamw", "groups", "adafactor"])
@pytest.mark.long_cases("adafactor", "groups", "adamw")
def test_20_more_steps_in_nnx(name, tmp_path):
    model, optimizer = trained(OPTIMIZERS[name][0])
    made = plan(model.state_dict(), model=model, to="nnx")
    path = tmp_path / "opt.safetensors"
    done = convert_optimizer(optimizer.state_dict(), plan=made, model=model, output=path)
    tree = convert_to_pytree(model.state_dict(), model=model, to="nnx")
    flax = NnxNet(nnx.Rngs(0))
    graph, params = nnx.split(flax, nnx.Param)
    nnx.replace_by_pure_dict(params, jax.tree.map(lambda x: jnp.array(x, copy=True), tree))
    tx = done.recipe.build(params)
    state = load_optimizer(path, tx, params)
    expected = torch_steps(model, optimizer, STEPS)
    losses, *_ = jax_steps(lambda params, x: nnx.merge(graph, params)(x), params, tx, state, STEPS)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_a_schedule_and_clipping_of_ones_own(tmp_path):
    """Any chain with the same moments takes the state; the schedule's count goes on, too."""
    model, optimizer = trained(OPTIMIZERS["adamw"][0])
    path = tmp_path / "opt.safetensors"
    made = plan(model.state_dict(), model=model)
    convert_optimizer(optimizer.state_dict(), plan=made, output=path)
    params = convert_to_pytree(model.state_dict(), model=model)
    tx = optax.chain(
        optax.clip_by_global_norm(1e9),
        optax.adamw(optax.constant_schedule(2e-3), b1=0.8, b2=0.95, weight_decay=0.3),
    )
    params = {"params": jax.tree.map(jnp.asarray, params["params"])}  # all variables, as linen has
    state = load_optimizer(path, tx, params)
    assert int(optax.tree.get(state[1], "mu")["params"]["head"]["bias"].size) == 4
    counts = [int(leaf) for leaf in jax.tree.leaves(state) if leaf.shape == ()]
    assert counts == [10, 10]
    expected = torch_steps(model, optimizer, STEPS)
    losses, *_ = jax_steps(LinenNet().apply, params, tx, state, STEPS)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_an_optimizer_of_nnx(tmp_path):
    """`nnx.Optimizer` takes the loaded state as its `opt_state`."""
    model, optimizer = trained(OPTIMIZERS["adamw"][0])
    path = tmp_path / "opt.safetensors"
    made = plan(model.state_dict(), model=model, to="nnx")
    done = convert_optimizer(optimizer.state_dict(), plan=made, output=path)
    tree = convert_to_pytree(model.state_dict(), model=model, to="nnx")
    flax = NnxNet(nnx.Rngs(0))
    nnx.update(flax, jax.tree.map(lambda x: jnp.array(x, copy=True), tree))
    params = nnx.state(flax, nnx.Param)
    tx = done.recipe.build(params)
    theirs = nnx.Optimizer(flax, tx, wrt=nnx.Param)
    nnx.update(
        theirs.opt_state, nnx.state(nnx.optimizer.to_opt_state(load_optimizer(path, tx, params)))
    )
    expected = torch_steps(model, optimizer, 3)
    images = IMAGES.transpose(0, 2, 3, 1)
    losses = []
    with jax.default_matmul_precision("highest"):
        for _ in range(3):
            loss, grads = nnx.value_and_grad(lambda net: ((net(images) - TARGETS) ** 2).mean())(
                flax
            )
            theirs.update(flax, grads)
            losses.append(float(loss))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_a_fresh_state_would_be_noticed():
    """The comparison is not empty: without the moments the losses are others."""
    model, optimizer = trained(OPTIMIZERS["adamw"][0])
    tree = convert_to_pytree(model.state_dict(), model=model)["params"]
    params = jax.tree.map(lambda x: jnp.array(x, copy=True), tree)
    tx = optax.adamw(2e-3, b1=0.8, b2=0.95, weight_decay=0.3)
    expected = torch_steps(model, optimizer, STEPS)
    losses, *_ = jax_steps(
        lambda params, x: LinenNet().apply({"params": params}, x),
        params,
        tx,
        tx.init(params),
        STEPS,
    )
    assert np.abs(np.array(losses) / expected - 1).max() > 1e-3
