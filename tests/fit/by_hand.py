"""Steps of training in plain JAX, compiled by `jax.jit(…).lower(…).compile()` for a v5e-8."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

Figures = dict[str, Any]
_EXCHANGES = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
_EXCHANGE = re.compile(rf"^ *(?:ROOT )?%\S+ = (.*?) ({_EXCHANGES})\(", re.MULTILINE)
_ARRAY = re.compile(r"\b[a-z]+(\d+)\[([\d,]*)\]")


@dataclass(frozen=True)
class Hand:
    """A step.

    Attributes:
        weights: their shapes, by name; those that end in "mean" or "var" are statistics.
        forward: (weights, x) → what the loss is of, and the statistics after it.
        x: of one of the 8 replicas.
        made: the shape of what one replica gives.
    """

    weights: Mapping[str, tuple[int, ...]]
    forward: Callable[[Any, Any], tuple[Any, Any]]
    x: tuple[int, ...]
    made: tuple[int, ...]


def by_hand(name: str) -> Figures:
    """What jax says of a step of `HANDS`, mean square and AdamW; the exchanges by its text."""
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    hand = HANDS[name]()
    devices = topologies.get_topology_desc("v5e:2x4", platform="tpu").devices
    mesh = Mesh(np.array(devices), ("data",))
    optimizer = optax.adamw(1e-3, eps=1e-8, weight_decay=0.01)

    def whole(one: Any) -> Any:
        return jax.ShapeDtypeStruct(
            one.shape, one.dtype, sharding=NamedSharding(mesh, PartitionSpec())
        )

    def cut(shape: tuple[int, ...]) -> Any:
        sharding = NamedSharding(mesh, PartitionSpec("data"))
        return jax.ShapeDtypeStruct(
            (8 * shape[0], *shape[1:]), jnp.dtype(jnp.float32), sharding=sharding
        )

    def step(trained: Any, kept: Any, state: Any, x: Any, target: Any) -> Any:
        def loss(trained: Any) -> Any:
            out, after = hand.forward(trained | kept, x)
            return jnp.mean((out - target) ** 2), after

        (value, after), gradients = jax.value_and_grad(loss, has_aux=True)(trained)
        updates, state = optimizer.update(gradients, state, trained)
        return optax.apply_updates(trained, updates), after, state, value

    weights = {
        name: whole(jax.ShapeDtypeStruct(shape, jnp.float32))
        for name, shape in hand.weights.items()
    }
    kept = {name: one for name, one in weights.items() if name.endswith(("mean", "var"))}
    trained = {name: one for name, one in weights.items() if name not in kept}
    state = jax.tree.map(whole, jax.eval_shape(optimizer.init, trained))
    jitted = jax.jit(step, donate_argnums=(0, 1, 2))
    compiled = jitted.lower(trained, kept, state, cut(hand.x), cut(hand.made)).compile()
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
    exchanges: Counter[str] = Counter()
    for result, kind in _EXCHANGE.findall(compiled.as_text()):
        exchanges[f"{kind}s"] += 1
        exchanges[f"{kind} bytes"] += sum(
            int(bits) // 8 * prod(map(int, filter(None, sides.split(","))))
            for bits, sides in _ARRAY.findall(result)
        )
    return {
        "hbm": memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes,
        "flops": cost["flops"],
        **exchanges,
    }


def as_by_hand(found: Mapping[str, Any]) -> Figures:
    """The same figures of what `migrate fit --json` says."""
    (told,) = found["slices"]
    exchanges: Counter[str] = Counter()
    for one in told["collectives"]:
        exchanges[f"{one['kind']}s"] += one["times"]
        exchanges[f"{one['kind']} bytes"] += one["bytes"]
    return {"hbm": told["hbm"]["needed"], "flops": told["flops"], **exchanges}


def _tower() -> Hand:
    def forward(w: Any, x: Any) -> tuple[Any, Any]:
        hidden = jax.nn.relu(x @ w["Dense_0/kernel"] + w["Dense_0/bias"])
        return hidden @ w["Dense_1/kernel"] + w["Dense_1/bias"], {}

    weights: dict[str, tuple[int, ...]] = {
        "Dense_0/bias": (1024,),
        "Dense_0/kernel": (512, 1024),
        "Dense_1/bias": (16,),
        "Dense_1/kernel": (1024, 16),
    }
    return Hand(weights, forward, (64, 512), (64, 16))


def _llama() -> Hand:
    """A block of 4 heads of 32 in 2 groups, rotary places, SwiGLU."""
    kernels = {"q": (128, 128), "k": (128, 64), "v": (128, 64), "out": (128, 128)}
    kernels |= {"gate": (128, 352), "up": (128, 352), "down": (352, 128)}

    def norm(x: Any, scale: Any) -> Any:
        return x * (lax.rsqrt(jnp.mean(lax.square(x), -1, keepdims=True) + 1e-6) * scale)

    def turned(x: Any) -> Any:
        rates = 10000.0 ** (-jnp.arange(16) / 16)
        angles = jnp.arange(x.shape[1])[:, None] * rates
        cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
        left, right = x[..., :16], x[..., 16:]
        return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1)

    def forward(w: Any, x: Any) -> tuple[Any, Any]:
        batch, tokens, _ = x.shape
        y = norm(x, w["before/scale"])
        q, k, v = (y @ w[f"{one}/kernel"] for one in "qkv")
        q = turned(q.reshape(batch, tokens, 4, 32))
        k = jnp.repeat(turned(k.reshape(batch, tokens, 2, 32)), 2, 2)
        v = jnp.repeat(v.reshape(batch, tokens, 2, 32), 2, 2)
        earlier = jnp.tril(jnp.ones((tokens, tokens), bool))
        mixed = _attention(q, k, v, earlier).reshape(batch, tokens, -1)
        x = x + mixed @ w["out/kernel"]
        y = norm(x, w["after/scale"])
        gate = y @ w["gate/kernel"]
        return x + (gate * jax.nn.sigmoid(gate) * (y @ w["up/kernel"])) @ w["down/kernel"], {}

    weights: dict[str, tuple[int, ...]] = {"before/scale": (128,), "after/scale": (128,)}
    weights |= {f"{name}/kernel": shape for name, shape in kernels.items()}
    return Hand(weights, forward, (2, 64, 128), (2, 64, 128))


def _attention(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    """Of (batch, tokens, heads, features) each."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q / np.sqrt(q.shape[-1]).astype(np.float32), k)
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def _vit() -> Hand:
    """Patches of 4 × 4, a token for the class, twelve blocks of 64."""
    weights: dict[str, tuple[int, ...]] = {
        "patches/kernel": (4, 4, 3, 64),
        "patches/bias": (64,),
        "token": (1, 1, 64),
        "places": (1, 65, 64),
        "norm/scale": (64,),
        "norm/bias": (64,),
        "head/kernel": (64, 10),
        "head/bias": (10,),
    }
    for number in range(12):
        for one in ("query", "key", "value"):
            weights |= {
                f"attention{number}/{one}/kernel": (64, 4, 16),
                f"attention{number}/{one}/bias": (4, 16),
            }
        weights |= {
            f"attention{number}/out/kernel": (4, 16, 64),
            f"attention{number}/out/bias": (64,),
            f"before{number}/scale": (64,),
            f"before{number}/bias": (64,),
            f"after{number}/scale": (64,),
            f"after{number}/bias": (64,),
            f"up{number}/kernel": (64, 256),
            f"up{number}/bias": (256,),
            f"down{number}/kernel": (256, 64),
            f"down{number}/bias": (64,),
        }

    def norm(x: Any, w: Any, name: str) -> Any:
        mean, square = x.mean(-1, keepdims=True), lax.square(x).mean(-1, keepdims=True)
        spread = jnp.maximum(0.0, square - lax.square(mean))
        return (x - mean) * (lax.rsqrt(spread + 1e-6) * w[f"{name}/scale"]) + w[f"{name}/bias"]

    def dense(x: Any, w: Any, name: str) -> Any:
        return x @ w[f"{name}/kernel"] + w[f"{name}/bias"]

    def forward(w: Any, image: Any) -> tuple[Any, Any]:
        x = _convolution(image, w["patches/kernel"], 4, "VALID") + w["patches/bias"]
        x = x.reshape(x.shape[0], -1, 64)
        token = jnp.broadcast_to(w["token"], (x.shape[0], 1, 64))
        x = jnp.concatenate([token, x], 1) + w["places"]
        for number in range(12):
            name = f"attention{number}"
            y = norm(x, w, f"before{number}")
            q, k, v = (
                jnp.einsum("btw,whd->bthd", y, w[f"{name}/{one}/kernel"]) + w[f"{name}/{one}/bias"]
                for one in ("query", "key", "value")
            )
            mixed = jnp.einsum("bthd,hdw->btw", _attention(q, k, v), w[f"{name}/out/kernel"])
            x = x + (mixed + w[f"{name}/out/bias"])
            y = jax.nn.gelu(dense(norm(x, w, f"after{number}"), w, f"up{number}"))
            x = x + dense(y, w, f"down{number}")
        return dense(norm(x, w, "norm")[:, 0], w, "head"), {}

    return Hand(weights, forward, (4, 32, 32, 3), (4, 10))


def _convolution(x: Any, kernel: Any, stride: int, padding: str) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=numbers)


def _resnet50() -> Hand:
    """3, 4, 6 and 3 bottlenecks, 8 channels after the stem."""
    weights: dict[str, tuple[int, ...]] = {}

    def layer(name: str, side: int, before: int, after: int) -> None:
        weights[f"{name}conv/kernel"] = (side, side, before, after)
        for one in ("scale", "bias", "mean", "var"):
            weights[f"{name}norm/{one}"] = (after,)

    layer("stem", 7, 3, 8)
    before = 8
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 8 << stage
        for block in range(blocks):
            name = f"{stage}_{block}_"
            layer(f"{name}a", 1, before, width)
            layer(f"{name}b", 3, width, width)
            layer(f"{name}c", 1, width, 4 * width)
            if not block:
                layer(f"{name}d", 1, before, 4 * width)
            before = 4 * width
    weights |= {"head/kernel": (before, 10), "head/bias": (10,)}

    def forward(w: Any, image: Any) -> tuple[Any, Any]:
        after: dict[str, Any] = {}

        def convolved(x: Any, name: str, stride: int = 1) -> Any:
            x = _convolution(x, w[f"{name}conv/kernel"], stride, "SAME")
            name += "norm"
            mean, square = x.mean((0, 1, 2)), lax.square(x).mean((0, 1, 2))
            spread = jnp.maximum(0.0, square - lax.square(mean))
            after[f"{name}/mean"] = 0.99 * w[f"{name}/mean"] + (1 - 0.99) * mean
            after[f"{name}/var"] = 0.99 * w[f"{name}/var"] + (1 - 0.99) * spread
            return (x - mean) * (lax.rsqrt(spread + 1e-5) * w[f"{name}/scale"]) + w[f"{name}/bias"]

        x = jax.nn.relu(convolved(image, "stem", 2))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for stage, blocks in enumerate((3, 4, 6, 3)):
            for block in range(blocks):
                name, stride = f"{stage}_{block}_", 2 if stage and not block else 1
                y = jax.nn.relu(convolved(x, f"{name}a"))
                y = jax.nn.relu(convolved(y, f"{name}b", stride))
                y = convolved(y, f"{name}c")
                x = jax.nn.relu((x if block else convolved(x, f"{name}d", stride)) + y)
        return x.mean((1, 2)) @ w["head/kernel"] + w["head/bias"], after

    return Hand(weights, forward, (4, 64, 64, 3), (4, 10))


HANDS: dict[str, Callable[[], Hand]] = {
    "tower": _tower,
    "Llama": _llama,
    "ViT": _vit,
    "ResNet50": _resnet50,
}
