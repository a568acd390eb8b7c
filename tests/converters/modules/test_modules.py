"""The package as a whole: what is imported when, and that both APIs have the same layers."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from converters import convert_to_pytree
from converters.modules import linen as ours_linen
from converters.modules import nnx as ours_nnx
from converters.modules.functional.attention import as_bias, causal_mask
from converters.modules.functional.bag import embedding_bag
from converters.modules.linen import plain as plain_linen
from converters.modules.nnx import plain as plain_nnx


def test_flax_is_imported_with_the_layers_only():
    script = "import converters.modules, converters.layers, sys; print('flax' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False"]


def test_both_apis_have_the_same_layers():
    # linen's own norms take several axes; nnx's do not.
    assert set(ours_nnx.__all__) - set(ours_linen.__all__) == {"LayerNorm", "RMSNorm"}
    assert set(ours_linen.__all__) <= set(ours_nnx.__all__)
    for module in (ours_linen, ours_nnx):
        for name in module.__all__:
            assert getattr(module, name).__doc__


@pytest.mark.long
def test_a_layer_begins_with_its_own_weights():
    """Not only converted ones: init gives finite values and torch's starting points."""
    x = jnp.ones((2, 5, 4))
    layers = [
        ours_linen.PReLU(4),
        ours_linen.BatchNorm(use_running_average=True),
        ours_linen.WeightNorm(ours_linen.ConvTranspose(3, (3,)), axis=-2),
        ours_linen.GRU(3, bidirectional=True),
    ]
    for layer in layers:
        output, _ = jax.jit(layer.init_with_output)(jax.random.key(0), x)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(output))


def test_a_weight_normed_layer_begins_as_the_layer():
    layer = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
    x = jnp.arange(8.0).reshape(2, 4)
    plain = layer(x)
    np.testing.assert_allclose(ours_nnx.WeightNorm(layer)(x), plain, rtol=1e-5)


def test_a_spectral_normed_kernel_has_norm_one():
    from flax import linen

    x = jnp.eye(4)
    layer = ours_linen.SpectralNorm(linen.Dense(3, use_bias=False))
    kernel = layer.apply(layer.init(jax.random.key(0), x), x)
    assert np.linalg.norm(kernel, 2) == pytest.approx(1, rel=1e-2)


def test_a_boolean_mask_says_what_is_not_allowed():
    mask = causal_mask(2, 3)
    np.testing.assert_array_equal(mask, [[False, True, True], [False, False, True]])
    np.testing.assert_array_equal(as_bias(mask, jnp.float32)[0], [0, -np.inf, -np.inf])


def test_a_row_in_which_nothing_is_allowed_is_nan_as_in_torch():
    import torch

    layer = ours_nnx.MultiheadAttention(4, 2, batch_first=True, rngs=nnx.Rngs(0))
    x, mask = np.ones((1, 3, 4), np.float32), np.ones((1, 3), bool)
    output, weights = layer(x, x, x, key_padding_mask=mask)
    theirs = torch.nn.MultiheadAttention(4, 2, batch_first=True)
    given = torch.from_numpy(x)
    wanted, wanted_weights = theirs(given, given, given, key_padding_mask=torch.from_numpy(mask))
    for value in (output, weights, wanted.detach().numpy(), wanted_weights.detach().numpy()):
        assert np.isnan(value).all()


def test_without_weights_a_row_in_which_nothing_is_allowed_is_zero_as_in_torch():
    """As torch's fused attention: the output is that of the bias, and gradients are finite."""
    import torch

    x = np.random.default_rng(0).standard_normal((3, 4, 6)).astype(np.float32)
    pad = np.zeros((3, 4), bool)
    pad[1], pad[2, 2:] = True, True
    theirs = torch.nn.MultiheadAttention(6, 2, batch_first=True)
    given = torch.from_numpy(x).requires_grad_()
    wanted, _ = theirs(
        given, given, given, key_padding_mask=torch.from_numpy(pad), need_weights=False
    )
    wanted.square().sum().backward()
    layer = ours_linen.MultiheadAttention(6, 2, batch_first=True)
    weights = convert_to_pytree(theirs.state_dict(), model=theirs)

    def run(x):
        return layer.apply(weights, x, x, x, key_padding_mask=pad, need_weights=False)[0]

    np.testing.assert_allclose(run(x), wanted.detach(), atol=1e-5)
    gradient = jax.grad(lambda x: (run(x) ** 2).sum())(x)
    np.testing.assert_allclose(gradient, given.grad, atol=1e-4)


@pytest.mark.parametrize(
    ("ids", "offsets", "weights", "message"),
    [
        (np.zeros((2, 3), int), np.array([0]), None, "offsets go with ids of one axis"),
        (np.zeros(3, int), None, None, "offsets go with ids of one axis"),
        (np.zeros((2, 3), int), None, np.ones((2, 3)), "go with the mode sum"),
    ],
)
def test_wrong_arguments_of_a_bag(ids, offsets, weights, message):
    with pytest.raises(ValueError, match=message):
        embedding_bag(
            jnp.ones((4, 2)),
            ids,
            offsets,
            weights,
            mode="mean",
            padding_idx=None,
            include_last_offset=False,
        )


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_short_recurrent_layers_compute_what_the_long_ones_do(name: str) -> None:
    x = jax.random.normal(jax.random.key(0), (2, 5, 3))
    sizes = {"num_layers": 2, "bidirectional": True}
    long = getattr(ours_linen, name)(4, batch_first=True, **sizes)
    weights = long.init(jax.random.key(1), x)
    short = getattr(plain_linen, name)(4, **sizes)
    nnx_short = getattr(plain_nnx, name)(3, 4, **sizes, rngs=nnx.Rngs(0))
    for key, array in weights["params"].items():
        getattr(nnx_short, key)[...] = array
    wanted = jax.tree.leaves(long.apply(weights, x))
    for found in (short.apply(weights, x), nnx_short(x)):
        for left, right in zip(jax.tree.leaves(found), wanted, strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)
