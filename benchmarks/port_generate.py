"""Generation from ports: greedy tokens equal to torch's, and the speed beside JAX by hand.

    python benchmarks/port_generate.py [MODEL…] [--rounds 7] [--only-tokens | --only-speed]

Tokens: eight tiny models (benchmarks/zoo_models/generating.py), each ported with its cache; 50 greedy tokens
for three prompts of 5 and of 11 tokens, padded on the left, are compared with transformers' `generate`.
Speed: tokens a second of `generate.py` for a small Llama, as a share of a hand-written JAX program with the
same weights, cache, bucket and loop; the best of the rounds, alternating. Exit code 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # not for whoever imports it: the tests ask a hub of their own
    os.environ |= {"HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from history import append  # noqa: E402

from benchmarks.zoo_models import generating  # noqa: E402

NEW, BATCH, PROMPT = 50, 4, 64
GOAL = 0.95
SIZES = {
    "vocab_size": 4096,
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_hidden_layers": 6,
    "max_position_embeddings": 512,
}


# By hand.


def norm(x: Any, weight: Any) -> Any:
    return weight * (x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6))


def rotate(x: Any, positions: Any) -> Any:
    half = x.shape[-1] // 2
    angle = positions[:, :, None, None] / 10000.0 ** (jnp.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def forward(params: Any, tokens: Any, cache: Any, index: Any, mask: Any, positions: Any) -> Any:
    """Logits of the last token, and the new cache, which has the axes (batch, heads, length, size)."""
    x = params["embed_tokens"]["embedding"][tokens]
    rows, length = tokens.shape
    size = SIZES["hidden_size"] // SIZES["num_attention_heads"]
    ahead = jnp.arange(mask.shape[1]) <= index + jnp.arange(length)[:, None]
    seen = ahead[None] & (mask[:, None] > 0)
    new = []
    for number, (keys, values) in enumerate(cache):
        layer = params[f"layers_{number}"]
        attention, mlp = layer["self_attn"], layer["mlp"]
        h = norm(x, layer["input_layernorm"]["weight"])
        q, k, v = (
            (h @ attention[f"{name}_proj"]["kernel"]).reshape(rows, length, -1, size)
            for name in "qkv"
        )
        q, k = rotate(q, positions), rotate(k, positions)
        keys = jax.lax.dynamic_update_slice(keys, k.swapaxes(1, 2), (0, 0, index, 0))
        values = jax.lax.dynamic_update_slice(values, v.swapaxes(1, 2), (0, 0, index, 0))
        new.append((keys, values))
        out = jax.nn.dot_product_attention(
            q, keys.swapaxes(1, 2), values.swapaxes(1, 2), mask=seen[:, None]
        )
        x = x + out.reshape(rows, length, -1) @ attention["o_proj"]["kernel"]
        h = norm(x, layer["post_attention_layernorm"]["weight"])
        gate = jax.nn.silu(h @ mlp["gate_proj"]["kernel"]) * (h @ mlp["up_proj"]["kernel"])
        x = x + gate @ mlp["down_proj"]["kernel"]
    return norm(x[:, -1], params["norm"]["weight"]), new


@partial(jax.jit, static_argnames="new")
def by_hand(params: Any, prompt: Any, prompt_mask: Any, new: int) -> Any:
    rows, count = prompt.shape
    size = SIZES["hidden_size"] // SIZES["num_attention_heads"]
    shape = (rows, SIZES["num_key_value_heads"], count + new, size)
    cache: Any = [(jnp.zeros(shape), jnp.zeros(shape)) for _ in range(SIZES["num_hidden_layers"])]
    mask = jnp.concatenate([prompt_mask, jnp.ones((rows, new), prompt_mask.dtype)], 1)
    positions = jnp.clip(jnp.cumsum(mask, 1) - 1, 0)
    model, head = params["params"]["model"], params["params"]["lm_head"]["kernel"]

    def step(at: Any, state: Any) -> Any:
        tokens, cache = state
        last = jax.lax.dynamic_slice_in_dim(tokens, at - 1, 1, 1)
        here = jax.lax.dynamic_slice_in_dim(positions, count + at - 1, 1, 1)
        x, cache = forward(model, last, cache, count + at - 1, mask, here)
        token = (x @ head).argmax(-1)
        return jax.lax.dynamic_update_slice_in_dim(tokens, token[:, None], at, 1), cache

    x, cache = forward(model, prompt, cache, 0, mask, positions[:, :count])
    tokens = jnp.zeros((rows, new), jnp.int32).at[:, 0].set((x @ head).argmax(-1))
    return jax.lax.fori_loop(1, new, step, (tokens, cache))[0]


# Measures.


def speed(rounds: int, folder: Path) -> dict[str, Any]:
    generating.MODELS["a small Llama"] = ("LlamaConfig", "LlamaForCausalLM", SIZES)
    _, package, _ = generating.ported("a small Llama", folder / "small")
    model, params = package.build(), package.load_params()
    prompt = np.random.default_rng(0).integers(3, 4096, (BATCH, PROMPT)).astype(np.int32)
    mask = np.ones_like(prompt)
    mask[0, :9] = 0

    def port() -> Any:
        return package.generate.generate(model, params, prompt, mask, max_new_tokens=NEW)

    def hand() -> Any:
        return by_hand(params, prompt, mask, NEW)

    same = bool((np.asarray(port()) == np.asarray(hand())).all())
    best = {"port": float("inf"), "hand": float("inf")}
    for _ in range(rounds):
        for name, run in (("port", port), ("hand", hand)):
            start = time.perf_counter()
            jax.block_until_ready(run())
            best[name] = min(best[name], time.perf_counter() - start)
    return {
        "model": "Llama of 6 layers, batch 4, 64 + 50 tokens",
        "tokens a second": round(BATCH * NEW / best["port"]),
        "÷ JAX by hand": round(best["hand"] / best["port"], 2),
        "same tokens": "yes" if same else "no",
    }


def tokens(name: str, folder: Path) -> dict[str, Any]:
    model, package, _ = generating.ported(name, folder / name.lower().replace(" ", ""))
    equal, total, different = 0, 0, set()
    for length in (5, 11):
        wanted, generated = generating.both(name, model, package, length, NEW)
        equal += int((wanted == np.asarray(generated)).sum())
        total += wanted.size
        different |= set(wanted.flatten().tolist())
    return {
        "model": name,
        "equal tokens": f"{equal} of {total}",
        "different tokens": len(different),
        "compilations for 2 buckets": package.generate.generate_padded._cache_size(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", default=list(generating.MODELS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only-tokens", action="store_true")
    parser.add_argument("--only-speed", action="store_true")
    options = parser.parse_args()
    missed = False
    with tempfile.TemporaryDirectory() as scratch:
        for name in [] if options.only_speed else options.models:
            row = tokens(name, Path(scratch))
            print(row, flush=True)
            append("port-generate", row)
            some, _, whole = row["equal tokens"].partition(" of ")
            missed |= some != whole
        if not options.only_tokens:
            row = speed(options.rounds, Path(scratch))
            print(row, flush=True)
            append("port-generate-speed", row)
            missed |= row["÷ JAX by hand"] < GOAL or row["same tokens"] == "no"
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
