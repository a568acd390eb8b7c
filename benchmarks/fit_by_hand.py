"""`migrate fit` against jax itself: the same training step, compiled by hand for the same slice.

    python benchmarks/fit_by_hand.py [--only PART OF A NAME] [--slice v5e-8]

A program stands in this file twice: as a Flax module, which `migrate fit` is given, and as plain functions of
arrays, compiled by `jax.jit(step).lower(…).compile()` in a process of its own. Printed: HBM that is reserved,
operations and exchanges, by both; exit code 1 where one of them differs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen

HIDDEN, HEADS, KEYS, WIDE = 1024, 8, 2, 2816


class LlamaBlock(linen.Module):
    """Grouped queries with rotary places, then the gated layers."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        """Of (batch, tokens, hidden)."""
        head = HIDDEN // HEADS
        y = linen.RMSNorm(epsilon=1e-5, use_fast_variance=False)(x)
        sides = [HEADS * head, KEYS * head, KEYS * head]
        q, k, v = (linen.Dense(side, use_bias=False)(y) for side in sides)
        y = linen.Dense(HIDDEN, use_bias=False)(attended(q, k, v))
        x = x + y
        y = linen.RMSNorm(epsilon=1e-5, use_fast_variance=False)(x)
        gate, up = (linen.Dense(WIDE, use_bias=False)(y) for _ in range(2))
        return x + linen.Dense(HIDDEN, use_bias=False)(jax.nn.silu(gate) * up)


def llama_by_hand(w: Mapping[str, Any], x: Any) -> Any:
    """The same of plain arrays, by the names that Flax gives them."""

    def norm(x: Any, scale: Any) -> Any:
        return x * (jax.lax.rsqrt(jnp.mean(jax.lax.square(x), -1, keepdims=True) + 1e-5) * scale)

    y = norm(x, w["RMSNorm_0"]["scale"])
    q, k, v = (y @ w[f"Dense_{number}"]["kernel"] for number in range(3))
    x = x + attended(q, k, v) @ w["Dense_3"]["kernel"]
    y = norm(x, w["RMSNorm_1"]["scale"])
    gate, up = (y @ w[f"Dense_{number}"]["kernel"] for number in (4, 5))
    return x + (jax.nn.silu(gate) * up) @ w["Dense_6"]["kernel"]


def attended(q: Any, k: Any, v: Any) -> Any:
    """Causal attention, the keys each for several queries."""
    batch, tokens, _ = q.shape
    head = HIDDEN // HEADS
    q = rotated(q.reshape(batch, tokens, HEADS, head))
    k = rotated(k.reshape(batch, tokens, KEYS, head))
    v = v.reshape(batch, tokens, KEYS, head)
    k, v = (jnp.repeat(one, HEADS // KEYS, 2) for one in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / head**0.5
    mask = jnp.tril(jnp.ones((tokens, tokens), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e30))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, tokens, HIDDEN)


def rotated(x: Any) -> Any:
    """By each token's place."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * 10_000.0 ** (-jnp.arange(half) / half)
    sin, cos = jnp.sin(angles)[:, None], jnp.cos(angles)[:, None]
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


# Name → the Flax model, the same by hand, what one replica takes.
PROGRAMS: dict[str, tuple[type[linen.Module], Callable[..., Any], tuple[int, ...]]] = {
    "Llama block": (LlamaBlock, llama_by_hand, (4, 256, HIDDEN)),
}


def by_fit(model: type[linen.Module], shape: tuple[int, ...], slice_: str) -> dict[str, Any]:
    """What `migrate fit` says."""
    inputs = f"x=float32[{','.join(map(str, shape))}]"
    command = [sys.executable, "-c", "from migrate.cli import main; main()", "fit", "--json"]
    target = f"{__file__}:{model.__name__}"
    with tempfile.TemporaryDirectory() as folder:  # a cache of its own: the compiler is asked
        ran = subprocess.run(
            [*command, "--tpu", slice_, "--inputs", inputs, "--train", "adamw", target],
            capture_output=True,
            text=True,
            env={**os.environ, "XDG_CACHE_HOME": folder},
            check=True,
        )
    (told,) = json.loads(ran.stdout)["slices"]
    counted: dict[str, int] = {}
    for one in told["collectives"]:
        counted[one["kind"]] = counted.get(one["kind"], 0) + one["times"]
    return {"hbm": told["hbm"]["needed"], "flops": told["flops"], "collectives": counted}


def by_hand(name: str, slice_: str) -> dict[str, Any]:
    """What jax says, in this process: its own step, its own shardings, its own compiler."""
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from migrate.fit.products import product_named

    model, function, shape = PROGRAMS[name]
    product = product_named(slice_)
    topology = topologies.get_topology_desc(product.topology, platform="tpu", **product.options)
    mesh = Mesh(np.array(topology.devices), ("data",))

    def placed(one: Any, *spec: str) -> Any:
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=sharding)

    def whole(tree: Any) -> Any:
        return jax.tree.map(placed, tree)

    everything = jax.ShapeDtypeStruct((shape[0] * product.devices, *shape[1:]), jnp.float32)
    weights = jax.eval_shape(model().init, jax.random.key(0), everything)["params"]
    optimizer = optax.adamw(1e-3, eps=1e-8, weight_decay=0.01)

    def step(weights: Any, state: Any, x: Any, target: Any) -> Any:
        def loss(weights: Any) -> Any:
            return jnp.mean((function(weights, x) - target) ** 2)

        value, gradients = jax.value_and_grad(loss)(weights)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, value

    batch = placed(everything, "data")
    compiled = (
        jax.jit(step, donate_argnums=(0, 1))
        .lower(whole(weights), whole(jax.eval_shape(optimizer.init, weights)), batch, batch)
        .compile()
    )
    memory = compiled.memory_analysis()
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes
    kinds = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
    counted: dict[str, int] = {}
    for kind in re.findall(rf" ({kinds})(?:-start)?\(", compiled.as_text()):
        counted[kind] = counted.get(kind, 0) + 1
    return {
        "hbm": held - memory.alias_size_in_bytes + memory.temp_size_in_bytes,
        "flops": compiled.cost_analysis()["flops"],
        "collectives": counted,
    }


def main() -> int:
    """Print the table; 1 where a figure differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--slice", default="v5e-8")
    parser.add_argument("--by-hand", choices=PROGRAMS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.by_hand:
        print(json.dumps(by_hand(options.by_hand, options.slice)))
        return 0
    differ = 0
    for name, (model, _, shape) in PROGRAMS.items():
        if options.only not in name:
            continue
        command = [sys.executable, __file__, "--by-hand", name, "--slice", options.slice]
        alone = {
            "JAX_PLATFORMS": "cpu",
            "TPU_SKIP_MDS_QUERY": "1",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        }
        ran = subprocess.run(
            command, capture_output=True, text=True, check=True, env={**os.environ, **alone}
        )
        hand = json.loads(ran.stdout.splitlines()[-1])
        ours = by_fit(model, shape, options.slice)
        differ += hand != ours
        for who, one in (("jax", hand), ("migrate fit", ours)):
            kinds = ", ".join(
                f"{count} {kind}" for kind, count in sorted(one["collectives"].items())
            )
            print(
                f"| {name}, {options.slice} | {who} | {one['hbm']:,} | {one['flops']:,.0f} | {kinds} |",
                flush=True,
            )
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
