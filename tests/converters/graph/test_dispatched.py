"""Attention whose implementation the configuration chooses."""

from __future__ import annotations

import ast
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from converters.graph.expression import code
from converters.graph.ops.functions.attention import biased_attention, masked_attention
from converters.graph.ops.functions.kernels import (
    dot_product_attention,
    kernel_lacks,
    kernel_of_device,
    sees_a_key,
    splash_attention,
)
from converters.graph.recording.trace import GraphError
from converters.graph.writing import linen
from converters.graph.writing.dispatched import with_dispatch
from converters.graph.writing.model import Class, Method, Model
from converters.graph.writing.sources import copied


def arrays(length: int, keys: int, heads: int = 2, key_heads: int = 1, width: int = 8) -> Any:
    draws = jax.random.split(jax.random.key(0), 4)
    shapes = [
        (2, length, heads, width),
        *[(2, keys, key_heads, width)] * 2,
        (2, length, heads, width),
    ]
    return [jax.random.normal(key, shape) for key, shape in zip(draws, shapes, strict=True)]


def left_padded(keys: int) -> jax.Array:
    return (jnp.arange(keys) >= jnp.array([[3], [0]]))[:, None, None]


def with_gradients(function: Any, *given: Any) -> list[Any]:
    *inputs, weights = given

    def loss(*inputs: Any) -> Any:
        return (function(*inputs) * weights).sum()

    return [function(*inputs), *jax.grad(loss, (0, 1, 2))(*inputs)]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.long_cases("True-True")
def test_xla_is_the_attention_as_written(causal: bool, masked: bool) -> None:
    given = arrays(6, 6)
    mask = left_padded(6) if masked else None
    got = with_gradients(
        lambda q, k, v: dot_product_attention(q, k, v, mask, is_causal=causal), *given
    )
    wanted = with_gradients(
        lambda q, k, v: masked_attention(q, k, v, mask, is_causal=causal), *given
    )
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.long
def test_a_bias_of_minus_infinity_is_a_mask() -> None:
    given = arrays(5, 7)
    bias = jnp.where(jnp.arange(35).reshape(5, 7) % 3 == 0, 0.5, -jnp.inf).at[2].set(-jnp.inf)
    got = with_gradients(lambda q, k, v: dot_product_attention(q, k, v, bias=bias), *given)
    wanted = with_gradients(lambda q, k, v: biased_attention(q, k, v, bias), *given)
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.long
def test_splash_attention_gives_values_and_gradients_of_the_attention_as_written() -> None:
    # Rows 0 to 2 of the first batch see no key; 20 positions are padded to a block.
    given, mask = arrays(20, 20), left_padded(20)

    def by_kernel(q: Any, k: Any, v: Any) -> Any:
        attended = splash_attention(q, k, v, mask, is_causal=True, scale=0.3, interpret=True)
        return jnp.where(sees_a_key(mask, 20, is_causal=True), attended, 0)

    got = with_gradients(by_kernel, *given)
    wanted = with_gradients(
        lambda q, k, v: masked_attention(q, k, v, mask, is_causal=True, scale=0.3), *given
    )
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_which_queries_see_a_key_needs_no_matrix() -> None:
    mask = left_padded(9)
    square = jnp.broadcast_to(mask, (2, 1, 9, 9))
    for causal in (True, False):
        np.testing.assert_array_equal(
            jnp.broadcast_to(sees_a_key(mask, 9, causal), (2, 9, 1, 1)),
            sees_a_key(square, 9, causal),
        )


@pytest.mark.parametrize(
    ("device", "implementation", "options", "why"),
    [
        ("cpu", "cudnn", {}, "attention='cudnn': JAX runs on cpu, and cuDNN needs a GPU"),
        (
            "gpu",
            "splash",
            {},
            "attention='splash': JAX runs on gpu, and splash attention needs a TPU",
        ),
        ("tpu", "splash", {"bias": jnp.zeros((1, 2, 5, 5))}, "splash attention has no bias"),
        ("tpu", "splash", {"mask": jnp.ones((5, 5), bool)}, "no mask that differs by query or"),
        ("tpu", "splash", {"dtype": jnp.float16}, "needs bfloat16 or float32, not float16"),
        ("cpu", "flash", {}, "attention='flash': unknown; known are"),
    ],
)
def test_a_call_that_a_kernel_does_not_support_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    implementation: str,
    options: dict[str, Any],
    why: str,
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: device)
    dtype = options.pop("dtype", jnp.float32)
    given = [array.astype(dtype) for array in arrays(5, 5)[:3]]
    with pytest.raises(ValueError, match=why):
        jax.eval_shape(
            lambda q, k, v: dot_product_attention(
                q, k, v, **options, implementation=implementation
            ),
            *given,
        )


@pytest.mark.parametrize(
    ("shape", "dtype", "masked", "why"),
    [
        ((2, 8, 2, 8), jnp.float32, False, "16 bits, not float32"),
        ((2, 8, 2, 12), jnp.bfloat16, False, "a multiple of 8, not 12"),
        ((2, 197, 2, 64), jnp.bfloat16, True, "even lengths, not 197 and 197"),
        ((2, 197, 2, 64), jnp.bfloat16, False, ""),
    ],
)
def test_what_cudnn_lacks(
    monkeypatch: pytest.MonkeyPatch, shape: Any, dtype: Any, masked: bool, why: str
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    array = jax.ShapeDtypeStruct(shape, dtype)
    mask: Any = jax.ShapeDtypeStruct((2, 1, 1, shape[1]), jnp.bool_) if masked else None
    said = kernel_lacks("cudnn", array, array, mask, None)
    assert why in said
    assert bool(said) == bool(why)


@pytest.mark.parametrize(
    ("device", "count", "kernel"),
    [("cpu", 1, "xla"), ("gpu", 8, "cudnn"), ("tpu", 1, "splash"), ("tpu", 8, "xla")],
)
def test_auto_is_the_kernel_of_the_device(
    monkeypatch: pytest.MonkeyPatch, device: str, count: int, kernel: str
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: device)
    monkeypatch.setattr(jax, "device_count", lambda: count)
    assert kernel_of_device() == kernel


def test_each_device_of_a_shard_map_has_its_own_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    chosen = []

    def device(x: jax.Array) -> jax.Array:
        chosen.append(kernel_of_device())
        return x

    mesh = jax.sharding.AbstractMesh((4, 2), ("data", "tensor"))
    everywhere = jax.sharding.PartitionSpec("data")
    for axes in ({"data", "tensor"}, {"data"}):
        jax.eval_shape(
            jax.shard_map(
                device, mesh=mesh, in_specs=everywhere, out_specs=everywhere, axis_names=axes
            ),
            jax.ShapeDtypeStruct((8, 4), jnp.float32),
        )
    assert chosen == ["splash", "xla"]


def a_class(name: str, setup: str, result: str, configured: bool) -> Class:
    method = Method(("x",), (), [], code(result))
    return Class(name, object, {}, configured, ast.parse(setup).body, {"__call__": method})


def test_functions_and_classes_receive_the_choice() -> None:
    function = ast.parse(
        "def attend(q, k):\n    return masked_attention(q, k, k, None, is_causal=True)"
    ).body[0]
    assert isinstance(function, ast.FunctionDef)
    attention = a_class("Attention", "", "attend(x, x)", configured=False)
    net = a_class("Net", "self.attention = Attention()", "self.attention(x)", configured=True)
    model, functions = with_dispatch(Model((attention, net), {}), [function], "auto")
    assert ast.unparse(ast.fix_missing_locations(functions[0])) == (
        "def attend(q, k, *, implementation: str):\n    return dot_product_attention("
        "q, k, k, mask=None, is_causal=True, implementation=implementation)"
    )
    assert "masked_attention" in ast.unparse(function)  # the given one stays
    attention, net = model.classes
    assert attention.configured
    result = attention.methods["__call__"].result
    assert ast.unparse(result) == "attend(x, x, implementation=self.config.attention)"
    assert (
        ast.unparse(ast.fix_missing_locations(net.setup[0]))
        == "self.attention = Attention(self.config)"
    )
    assert "    attention: str = 'auto'" in linen.configuration(model, "NetConfig", "Sizes.")


def test_a_model_without_attention_is_refused() -> None:
    net = a_class("Net", "", "x + 1", configured=True)
    with pytest.raises(GraphError, match="--attention: the model calls no attention"):
        with_dispatch(Model((net,), {}), [], "auto")


def test_an_import_within_a_function_is_not_repeated_at_the_top_of_a_port() -> None:
    sources, imports = copied([dot_product_attention])
    assert "    from jax.experimental.pallas.ops.tpu.splash_attention import" in "\n".join(sources)
    assert imports == ["import jax", "import jax.numpy as jnp"]
