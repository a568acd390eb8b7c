"""The emulation of the TPU's precision in JAX: in every construct, differentiated, and against torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax
from jax.extend.core import primitives
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as Spec

from migrate.parity.emulate import jax_interpreter, torch_mode
from migrate.parity.emulate.jax_interpreter import emulated
from migrate.parity.emulate.jax_split import JaxSplit
from migrate.parity.emulate.torch_split import TorchSplit
from migrate.parity.ground.settings import PRECISIONS, Precision

RANDOM = np.random.default_rng(0)


def drawn(*shape: int) -> Any:
    return jnp.asarray(RANDOM.standard_normal(shape), jnp.float32)


X, W = drawn(3, 4), drawn(4, 4)
MESH = jax.make_mesh((1,), ("d",), axis_types=(AxisType.Auto,))


@jax.custom_vjp
def doubled(x: Any) -> Any:
    return x @ W


doubled.defvjp(lambda x: (doubled(x), x), lambda _, g: (2 * (g @ W.T),))


def relative(found: Any, truth: Any) -> float:
    return float(jnp.linalg.norm(found - truth) / jnp.linalg.norm(truth))


CONSTRUCTS: dict[str, Callable[[Any], Any]] = {
    "jit": jax.jit(lambda x: x @ W),
    "einsum": lambda x: jnp.einsum("bi,ji->bj", x, W),
    "relu": lambda x: jax.nn.relu(x @ W) + jax.nn.gelu(x),
    "custom_vjp": doubled,
    "remat": lambda x: jax.checkpoint(lambda y: jnp.sin(y @ W))(x),
    "scan": lambda x: lax.scan(lambda c, _: (c @ W, c.sum()), x, None, length=3)[0],
    "fori_loop": lambda x: lax.fori_loop(0, 3, lambda _, c: c @ W, x),
    "cond": lambda x: lax.cond(x[0, 0] > -100, lambda y: y @ W, lambda y: y, x),
    "shard_map": jax.shard_map(lambda x: x @ W, mesh=MESH, in_specs=Spec("d"), out_specs=Spec("d")),
    "ragged_dot": lambda x: lax.ragged_dot(x, jnp.stack([W, 2 * W]), jnp.array([1, 2])),
    "convolution": lambda x: lax.conv_general_dilated(x[None], X[:, :3, None], (1,), "SAME"),
    "vmap": jax.vmap(lambda row: row @ W),
    "keys": lambda x: jax.random.normal(jax.random.key(0), (3, 3)) @ x,
    "bfloat16 beside float32": lambda x: lax.dot_general(
        x.astype(jnp.bfloat16), W, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
    ),
    "linear solver": lambda x: jax.scipy.sparse.linalg.cg(lambda v: (W @ W.T) @ v, x.T, maxiter=2)[
        0
    ],
    "flax": nn.Dense(5).bind({"params": {"kernel": drawn(4, 5), "bias": drawn(5)}}),
}


# It compiles two loops with a product in each.
DEAR = pytest.param("linear solver", marks=pytest.mark.long)


@pytest.mark.parametrize("name", [*sorted(CONSTRUCTS.keys() - {"linear solver"}), DEAR])
def test_products_in_every_construct(name: str) -> None:
    function = CONSTRUCTS[name]
    emulation = emulated(function, "default")
    difference = relative(emulation(X), function(X))
    assert 1e-5 < difference < 0.1
    assert emulation.seen.emulated
    assert not emulation.seen.unhandled


@pytest.mark.parametrize("name", ["custom_vjp", "remat", "scan", "shard_map", "convolution"])
def test_the_gradient_of_the_emulation_is_the_emulation_of_the_gradient(name: str) -> None:
    def loss(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda x: jnp.sum(function(x) ** 2)

    after = jax.grad(loss(emulated(CONSTRUCTS[name], "default")))(X)
    inside = emulated(jax.grad(loss(CONSTRUCTS[name])), "default")(X)
    plain = jax.grad(loss(CONSTRUCTS[name]))(X)
    assert relative(after, inside) < 1e-6
    assert relative(after, plain) > 1e-5


def test_a_while_loop_is_emulated_in_its_condition_and_its_body() -> None:
    def function(x: Any) -> Any:
        return lax.while_loop(lambda c: jnp.sum(c @ W) > 1e9, lambda c: c @ W, x)

    emulation = emulated(function, "default")
    emulation(X)
    assert emulation.seen.emulated == {"dot_general": 2}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_agrees_with_torch(precision: Precision) -> None:
    a, b = np.asarray(drawn(32, 512)), np.asarray(drawn(512, 32))
    image, kernel = np.asarray(drawn(2, 6, 9, 9)), np.asarray(drawn(4, 3, 3, 3))
    with torch_mode.emulated(precision):
        product = (torch.tensor(a) @ torch.tensor(b)).numpy()
        convolved = torch.conv2d(torch.tensor(image), torch.tensor(kernel), groups=2).numpy()

    def both(a: Any, b: Any, image: Any, kernel: Any) -> Any:
        convolved = lax.conv_general_dilated(image, kernel, (1, 1), "VALID", feature_group_count=2)
        return a @ b, convolved

    mine = emulated(both, precision)(a, b, image, kernel)
    for found, wanted in zip(mine, (product, convolved), strict=True):
        assert relative(found, wanted) < 4e-7  # the order of summation


def test_the_splits_are_those_of_torch_to_the_bit() -> None:
    # Normal numbers: XLA flushes the others to zero, as a TPU does.
    x = (RANDOM.standard_normal(10000) * np.exp(RANDOM.uniform(-60, 80, 10000))).astype(np.float32)
    special = np.array([0, np.inf, -np.inf, np.nan, 3.4e38, 1.00390625, 1.01171875], np.float32)
    x = np.concatenate([x, special])
    mine, torchs = JaxSplit(), TorchSplit()
    y, z = jnp.asarray(x), torch.tensor(x)
    pairs = [
        (mine.nearest(y), torchs.nearest(z)),
        (mine.truncated(y), torchs.truncated(z)),
        (mine.rest(y, mine.truncated(y)), torchs.rest(z, torchs.truncated(z))),
    ]
    for found, wanted in pairs:
        np.testing.assert_array_equal(np.asarray(found), wanted.numpy())


@pytest.mark.parametrize(
    ("written", "error"),
    [
        (lax.Precision.HIGHEST, 1e-6),
        (lax.Precision.HIGH, 5e-5),
        ((lax.Precision.DEFAULT, lax.Precision.HIGHEST), 1e-6),
        ("BF16_BF16_F32_X3", 5e-5),
        ("BF16_BF16_F32_X6", 1e-6),
    ],
)
def test_what_the_model_says_counts(written: Any, error: float) -> None:
    def function(x: Any) -> Any:
        return lax.dot(x, W, precision=written)

    assert 0 < relative(emulated(function, "default")(X), X @ W) < error


def test_an_explicit_default_stays_one_pass() -> None:
    def function(x: Any) -> Any:
        return lax.dot(x, W, precision=lax.Precision.DEFAULT)

    assert relative(emulated(function, "highest")(X), X @ W) > 1e-3


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: jnp.linalg.cholesky(x @ x.T + jnp.eye(3)), "cholesky"),
        (lambda x: jnp.fft.rfft(x).real, "fft"),
        (lambda x: lax.dot(x, W, precision="F32_F32_F32"), "dot_general (F32_F32_F32)"),
        (lambda x: jnp.abs((x + 1j) @ W), "dot_general (complex64)"),
        (lambda x: jax.pure_callback(lambda y: y, x, x), "pure_callback"),
        (lambda x: jax.jit(jnp.linalg.qr)(x)[0], "qr"),
    ],
)
def test_products_that_are_not_emulated_are_named(
    function: Callable[[Any], Any], name: str
) -> None:
    emulation = emulated(function, "default")
    emulation(X)
    assert any(name in one for one in emulation.seen.unhandled)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x @ W[0],
        lambda x: x[:1] @ W,
        lambda x: jnp.einsum("bi,bi->b", x, x),
        lambda x: jnp.outer(x, x),
        lambda x: x.astype(jnp.bfloat16) @ W.astype(jnp.bfloat16),
        lambda x: (x * 10).astype(jnp.int32) @ W.astype(jnp.int32),
        lambda x: nn.LayerNorm(use_scale=False, use_bias=False).apply({}, nn.softmax(x)),
    ],
)
def test_what_is_not_rounded(function: Callable[[Any], Any]) -> None:
    emulation = emulated(function, "default")
    np.testing.assert_array_equal(np.asarray(emulation(X)), np.asarray(jax.jit(function)(X)))
    assert not emulation.seen.emulated
    assert not emulation.seen.unhandled


def test_pytrees_and_keywords() -> None:
    def function(params: Any, *, inputs: Any) -> Any:
        return {"out": [inputs @ params["w"]]}

    found = emulated(function, "default")({"w": W}, inputs=X)
    assert relative(found["out"][0], X @ W) > 1e-3


def test_every_primitive_of_jax_that_sounds_like_a_product_is_known() -> None:
    names = {value.name for key, value in vars(primitives).items() if key.endswith("_p")}
    sounding = {"dot", "conv_", "matmul", "lu", "eig", "solve", "chol", "svd", "fft", "schur"}
    silent = {
        name
        for name in names
        if any(sound in name for sound in sounding)
        and not jax_interpreter._OPAQUE.match(name)
        and name not in jax_interpreter.PRODUCTS
    }
    # The solver's matrices are functions, which are gone into.
    assert silent <= {"custom_linear_solve", "clamp", "custom_lin", "lu_pivots_to_permutation"}
