"""What torch does in training beside the forward pass: running statistics, power iterations, dropout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn
from torch.nn.utils import parametrizations

from converters import convert_to_pytree
from converters.modules import linen as ours_linen
from converters.modules import nnx as ours_nnx

STEPS = 4


def batches(shape, seed=0):
    """Batches of several means and deviations, channels second."""
    rng = np.random.default_rng(seed)
    return [
        (rng.standard_normal(shape) * (1 + step) + step).astype(np.float32) for step in range(STEPS)
    ]


def last(x):
    return jnp.asarray(np.moveaxis(x, 1, -1))


def first(x):
    return np.moveaxis(np.asarray(x), -1, 1)


NORMS = [
    pytest.param("BatchNorm", "BatchNorm1d", (6, 4), {}, id="BatchNorm1d of vectors"),
    pytest.param("BatchNorm", "BatchNorm1d", (3, 4, 7), {"momentum": 0.3}, id="BatchNorm1d"),
    pytest.param("BatchNorm", "BatchNorm2d", (3, 4, 7, 5), {}, id="BatchNorm2d"),
    pytest.param("BatchNorm", "BatchNorm2d", (3, 4, 7, 5), {"momentum": None}, id="mean of all"),
    pytest.param("BatchNorm", "BatchNorm3d", (2, 4, 3, 2, 5), {"affine": False}, id="BatchNorm3d"),
    pytest.param(
        "InstanceNorm",
        "InstanceNorm2d",
        (3, 4, 7, 5),
        {"track_running_stats": True, "affine": True},
        id="InstanceNorm2d",
    ),
]


@pytest.mark.parametrize(("ours", "kind", "shape", "options"), NORMS)
def test_running_statistics_after_several_steps_are_torchs(ours, kind, shape, options):
    torch_layer = getattr(nn, kind)(4, **options)
    with torch.no_grad():
        for tensor in torch_layer.parameters():
            tensor.uniform_(0.5, 1.5)
    before = {key: value.clone() for key, value in torch_layer.state_dict().items()}
    linen_layer = getattr(ours_linen, ours)(**options, use_running_average=False)
    linen_tree = jax.tree.map(jnp.asarray, convert_to_pytree(before, model=torch_layer))
    nnx_layer = getattr(ours_nnx, ours)(4, **options)
    nnx.update(nnx_layer, convert_to_pytree(before, model=torch_layer, to="nnx"))

    for x in batches(shape):
        expected = torch_layer(torch.from_numpy(x)).detach().numpy()
        y, changed = linen_layer.apply(linen_tree, last(x), mutable=["batch_stats"])
        linen_tree = {**linen_tree, **changed}
        np.testing.assert_allclose(first(y), expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(first(nnx_layer(last(x))), expected, rtol=1e-5, atol=1e-5)

    after = torch_layer.state_dict()
    for theirs, name in (("running_mean", "mean"), ("running_var", "var")):
        wanted = after[theirs].numpy()
        np.testing.assert_allclose(linen_tree["batch_stats"][name], wanted, rtol=2e-6)
        np.testing.assert_allclose(getattr(nnx_layer, name)[...], wanted, rtol=2e-6)
        assert not np.allclose(before[theirs], wanted, rtol=0.01)
    if options.get("momentum", 0.1) is None:
        assert int(linen_tree["batch_stats"]["count"]) == int(nnx_layer.count[...]) == STEPS


def test_flaxs_own_batch_norm_would_not_do():
    """The reason for ours: after the same steps its running variance is another one."""
    torch_layer, own = nn.BatchNorm1d(4), nnx.BatchNorm(4, momentum=0.9, rngs=nnx.Rngs(0))
    for x in batches((6, 4)):
        torch_layer(torch.from_numpy(x))
        own(jnp.asarray(x))
    np.testing.assert_allclose(own.mean[...], torch_layer.running_mean, rtol=1e-5)
    assert np.abs(own.var[...] / torch_layer.running_var.numpy() - 1).min() > 0.05


def test_replicas_with_an_axis_name_see_one_batch():
    """torch's SyncBatchNorm over two replicas is BatchNorm of both batches together."""
    torch_layer = nn.BatchNorm2d(4)
    layer = ours_linen.BatchNorm(axis_name="replicas", use_running_average=False)
    (x, *_) = batches((6, 4, 5, 3))
    tree = jax.tree.map(jnp.asarray, convert_to_pytree(torch_layer.state_dict(), model=torch_layer))
    expected = torch_layer(torch.from_numpy(x)).detach().numpy()

    def replica(part):
        return layer.apply(tree, part, mutable=["batch_stats"])

    parts = last(x).reshape(2, 3, 5, 3, 4)
    y, changed = jax.vmap(replica, axis_name="replicas")(parts)
    np.testing.assert_allclose(first(y.reshape(6, 5, 3, 4)), expected, rtol=1e-5, atol=1e-5)
    for theirs, name in (("running_mean", "mean"), ("running_var", "var")):
        wanted = torch_layer.state_dict()[theirs].numpy()
        for side in (0, 1):
            np.testing.assert_allclose(changed["batch_stats"][name][side], wanted, rtol=2e-6)


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize(("norm", "order"), [("new", "u"), ("old", "v")])
def test_power_iterations_are_torchs(norm, order):
    torch.manual_seed(0)
    make = parametrizations.spectral_norm if norm == "new" else nn.utils.spectral_norm
    torch_layer = make(nn.Linear(5, 3))
    if norm == "old":
        torch_layer.eval()(torch.zeros(1, 5))
        torch_layer.train()
    state = {key: value.clone() for key, value in torch_layer.state_dict().items()}
    from flax import linen

    tree = jax.tree.map(jnp.asarray, convert_to_pytree(state, model=torch_layer))
    linen_layer = ours_linen.SpectralNorm(linen.Dense(3), first=order, training=True)
    nnx_layer = ours_nnx.SpectralNorm(nnx.Linear(5, 3, rngs=nnx.Rngs(0)), first=order)
    nnx.update(nnx_layer, convert_to_pytree(state, model=torch_layer, to="nnx"))
    for x in batches((2, 5)):
        expected = torch_layer(torch.from_numpy(x)).detach().numpy()
        y, changed = linen_layer.apply(tree, jnp.asarray(x), mutable=["batch_stats"])
        tree = {**tree, **changed}
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(nnx_layer(jnp.asarray(x)), expected, rtol=1e-5, atol=1e-6)
    after = convert_to_pytree(torch_layer.state_dict(), model=torch_layer)["batch_stats"]
    for name in ("kernel_u", "kernel_v"):
        np.testing.assert_allclose(tree["batch_stats"][name], after[name], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(getattr(nnx_layer, name)[...], after[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_an_id_that_does_not_count_has_no_gradient(mode):
    torch_layer = nn.EmbeddingBag(7, 3, mode=mode, padding_idx=2)
    ids = np.array([[1, 2, 4], [2, 2, 5]])
    torch_layer(torch.from_numpy(ids)).square().sum().backward()
    layer = ours_linen.EmbeddingBag(7, 3, mode=mode, padding_idx=2)
    tree = jax.tree.map(jnp.asarray, convert_to_pytree(torch_layer.state_dict(), model=torch_layer))
    gradient = jax.grad(lambda tree: jnp.square(layer.apply(tree, ids)).sum())(tree)
    found = gradient["params"]["embedding"]
    np.testing.assert_allclose(found, torch_layer.weight.grad, rtol=1e-5, atol=1e-6)
    assert not found[2].any()
    assert found[1].any()


def test_a_row_of_padding_has_no_gradient():
    from flax import nnx

    torch_layer = nn.Embedding(7, 3, padding_idx=2)
    ids = np.array([[1, 2, 4], [2, 2, 5]])
    torch_layer(torch.from_numpy(ids)).add(1).square().sum().backward()
    state = torch_layer.state_dict()
    tree = jax.tree.map(jnp.asarray, convert_to_pytree(state, model=torch_layer))
    linen_layer = ours_linen.PaddedEmbed(7, 3, padding_idx=2)
    nnx_layer = ours_nnx.PaddedEmbed(7, 3, padding_idx=2, rngs=nnx.Rngs(0))
    nnx.update(nnx_layer, convert_to_pytree(state, model=torch_layer, to="nnx"))
    of_linen = jax.grad(lambda tree: jnp.square(linen_layer.apply(tree, ids) + 1).sum())(tree)
    of_nnx = nnx.grad(lambda layer: jnp.square(layer(ids) + 1).sum())(nnx_layer)
    for found in (of_linen["params"]["embedding"], of_nnx["embedding"][...]):
        np.testing.assert_allclose(found, torch_layer.weight.grad, rtol=1e-5, atol=1e-6)
        assert not found[2].any()
        assert found[1].any()


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_gradients_of_recurrent_layers_are_torchs(kind):
    torch.manual_seed(0)
    torch_layer = getattr(nn, kind)(5, 3, num_layers=2)
    x = torch.randn(4, 2, 5)
    torch_layer(x)[0].square().sum().backward()
    layer = getattr(ours_linen, kind)(3, num_layers=2)
    tree = jax.tree.map(jnp.asarray, convert_to_pytree(torch_layer.state_dict(), model=torch_layer))
    loss = jax.jit(jax.grad(lambda tree: jnp.square(layer.apply(tree, x.numpy())[0]).sum()))
    gradients = loss(tree)
    theirs = {name: tensor.grad for name, tensor in torch_layer.named_parameters()}
    wanted = convert_to_pytree(theirs, model=torch_layer)["params"]
    assert gradients["params"].keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(gradients["params"][name], value, rtol=1e-4, atol=1e-5)


def test_dropout_is_there_in_training_only():
    x = jnp.ones((4, 2, 5))
    layer = ours_linen.LSTM(3, num_layers=2, dropout=0.5)
    tree = jax.jit(layer.init)(jax.random.key(0), x)
    run = jax.jit(layer.apply, static_argnames="deterministic")
    quiet = run(tree, x)[0]
    noisy = run(tree, x, deterministic=False, rngs={"dropout": jax.random.key(1)})[0]
    assert not np.allclose(quiet, noisy)
    np.testing.assert_array_equal(quiet, run(tree, x)[0])
    model = ours_nnx.LSTM(5, 3, num_layers=2, dropout=0.5, rngs=nnx.Rngs(0))
    call = nnx.jit(lambda model, x: model(x)[0])
    model.train()
    assert not np.allclose(call(model, x), call(model, x))
    model.eval()
    np.testing.assert_array_equal(call(model, x), call(model, x))
