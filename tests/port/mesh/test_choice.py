"""Which axes are divided follows from the traced program, not from names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from migrate.port.mesh.axes import trace_axes
from migrate.port.mesh.choice import specs_of

Shapes = Mapping[str, tuple[int, ...]]
X = jax.ShapeDtypeStruct((2, 6, 16), jnp.float32)
IDS = jax.ShapeDtypeStruct((2, 6), jnp.int32)


def specs(forward: Callable[..., Any], shapes: Shapes, x: Any = X) -> dict[str, tuple[Any, ...]]:
    weights = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    closed = jax.make_jaxpr(forward)(weights, x)
    traced = trace_axes(closed, sorted(weights), 1)
    return {name: spec.spec for name, spec in specs_of(traced, shapes).items()}


def norm(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)


def test_pairs_of_products_with_gates_and_biases() -> None:
    def forward(w: Any, x: Any) -> Any:
        return x + (jax.nn.silu(norm(x) @ w["a"] + w["bias"]) * (norm(x) @ w["b"])) @ w["c"]

    shapes = {"a": (16, 64), "b": (16, 64), "c": (64, 16), "bias": (64,)}
    assert specs(forward, shapes) == {
        "a": ("fsdp", "tensor"),
        "b": ("fsdp", "tensor"),
        "c": ("tensor", "fsdp"),
        "bias": ("tensor",),
    }


@pytest.mark.parametrize("order", ["abc", "zyx"])
def test_names_do_not_decide(order: str) -> None:
    up, down, other = order

    def forward(w: Any, x: Any) -> Any:
        return norm(x + jnp.tanh(norm(x) @ w[up]) @ w[down]) @ w[other]

    shapes = {up: (16, 64), down: (64, 16), other: (16, 8)}
    found = specs(forward, shapes)
    assert found[up] == ("fsdp", "tensor")
    assert found[down] == ("tensor", "fsdp")
    assert found[other] == ("fsdp", None)


def attention(w: Any, x: Any, heads: int, groups: int) -> Any:
    query = (norm(x) @ w["q"]).reshape(2, 6, heads, -1)
    key = (norm(x) @ w["k"]).reshape(2, 6, groups, -1)
    value = (norm(x) @ w["v"]).reshape(2, 6, groups, -1)
    key = jnp.concatenate([-key[..., 2:], key[..., :2]], axis=-1)
    return x + jax.nn.dot_product_attention(query, key, value).reshape(2, 6, -1) @ w["o"]


@pytest.mark.parametrize("groups", [2, 4])
def test_heads_and_groups_of_heads(groups: int) -> None:
    shapes = {"q": (16, 16), "k": (16, 4 * groups), "v": (16, 4 * groups), "o": (16, 16)}
    found = specs(lambda w, x: attention(w, x, 4, groups), shapes)
    assert found == {
        "q": ("fsdp", "tensor"),
        "k": ("fsdp", "tensor"),
        "v": ("fsdp", "tensor"),
        "o": ("tensor", "fsdp"),
    }


def test_an_odd_number_of_heads_is_not_divided() -> None:
    shapes = {"q": (16, 24), "k": (16, 24), "v": (16, 24), "o": (24, 16)}
    found = specs(lambda w, x: attention(w, x, 3, 3), shapes)
    assert {axis for spec in found.values() for axis in spec} == {"fsdp", None}


@pytest.mark.parametrize("form", ["split", "axis"])
def test_products_that_are_split_afterwards(form: str) -> None:
    def forward(w: Any, x: Any) -> Any:
        both = norm(x) @ w["qkv"]
        if form == "split":
            parts = [part.reshape(2, 6, 4, 4) for part in jnp.split(both, 3, -1)]
        else:
            parts = list(jnp.unstack(both.reshape(2, 6, 3, 4, 4), axis=2))
        return x + jax.nn.dot_product_attention(*parts).reshape(2, 6, -1) @ w["o"]

    assert specs(forward, {"qkv": (16, 48), "o": (16, 16)}) == {
        "qkv": ("fsdp", "tensor"),
        "o": ("tensor", "fsdp"),
    }


def vocabulary(w: Any, ids: Any) -> Any:
    x = jnp.take(w["table"], ids, axis=0) + w["places"][:6]
    x = x + jnp.tanh(norm(x) @ w["up"]) @ w["down"]
    return norm(x) @ (w["table"].T if "head" not in w else w["head"])


@pytest.mark.parametrize("tied", [True, False])
def test_the_vocabulary_is_divided(tied: bool) -> None:
    shapes = {"table": (128, 16), "places": (32, 16), "up": (16, 64), "down": (64, 16)}
    found = specs(vocabulary, shapes if tied else {**shapes, "head": (16, 128)}, IDS)
    assert found["table"] == ("tensor", "fsdp")
    assert found["places"] == ("fsdp", None)
    assert tied or found["head"] == ("fsdp", "tensor")


def test_a_vocabulary_that_would_limit_the_layers_is_not_divided() -> None:
    shapes = {"table": (130, 16), "places": (32, 16), "up": (16, 64), "down": (64, 16)}
    assert specs(vocabulary, shapes, IDS)["table"] == (None, "fsdp")


def test_experts() -> None:
    def forward(w: Any, x: Any) -> Any:
        rows = norm(x).reshape(12, 16)
        scores, chosen = jax.lax.top_k(rows @ w["router"], 1)
        sizes = jnp.bincount(chosen[:, 0], length=4)
        order = jnp.argsort(chosen[:, 0])
        up, gate = jnp.split(jax.lax.ragged_dot(rows[order], w["up"], sizes), 2, -1)
        return (jax.lax.ragged_dot(up * gate, w["down"], sizes) * scores).reshape(x.shape)

    assert specs(forward, {"router": (16, 4), "up": (4, 16, 64), "down": (4, 32, 16)}) == {
        "router": ("fsdp", None),
        "up": ("expert", "fsdp", "tensor"),
        "down": ("expert", "tensor", "fsdp"),
    }


def test_channels_of_convolutions() -> None:
    def conv(x: Any, kernel: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)

    def forward(w: Any, x: Any) -> Any:
        for block in ("1", "2"):
            y = jax.nn.relu(conv(x, w[f"a{block}"]) * w[f"scale{block}"])
            x = x + conv(y, w[f"b{block}"])
        return x

    one = {"a1": (3, 3, 16, 32), "b1": (3, 3, 32, 16), "scale1": (32,)}
    two = {"a2": (3, 3, 16, 32), "b2": (3, 3, 32, 16), "scale2": (32,)}
    found = specs(forward, {**one, **two}, jax.ShapeDtypeStruct((2, 8, 8, 16), jnp.float32))
    for block in ("1", "2"):
        assert found[f"a{block}"] == (None, None, "fsdp", "tensor")
        assert found[f"b{block}"] == (None, None, "tensor", "fsdp")
        assert found[f"scale{block}"] == ("tensor",)


def test_a_recurrence_is_not_divided_over_tensor() -> None:
    def forward(w: Any, x: Any) -> Any:
        def step(h: Any, row: Any) -> tuple[Any, Any]:
            h = jnp.tanh(row @ w["in"] + h @ w["state"])
            return h, h

        _, rows = jax.lax.scan(step, jnp.zeros((2, 32)), x.swapaxes(0, 1))
        return rows @ w["out"]

    found = specs(forward, {"in": (16, 32), "state": (32, 32), "out": (32, 8)})
    assert {axis for spec in found.values() for axis in spec} == {"fsdp", None}
