"""Generation of tokens: greedy search and sampling, with a cache of static length.

Prompts are padded on the left to a power of two, so that there is one compilation for each such
length, batch size, length of the cache and set of options.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from .config import LlamaForCausalLMConfig
from .modeling import LlamaForCausalLM

Cache = list[dict[str, Array]]

# The original's defaults: tokens that end a sequence, and the token that stands behind the end.
EOS_TOKEN_IDS: tuple[int, ...] = ()
PAD_TOKEN_ID = 0
# Prompts shorter than this are padded to it.
SMALLEST_BUCKET = 8


def bucket_of(length: int) -> int:
    """The length that a prompt is padded to: a power of two."""
    return max(SMALLEST_BUCKET, 1 << (length - 1).bit_length())


def init_cache(
    config: LlamaForCausalLMConfig, batch_size: int, length: int, dtype: DTypeLike = jnp.float32
) -> Cache:
    """An empty cache, with an entry for each layer."""
    shape = (batch_size, config.num_key_value_heads, length, config.head_dim)
    return [
        {"key": jnp.zeros(shape, dtype), "value": jnp.zeros(shape, dtype)}
        for _ in range(config.num_hidden_layers)
    ]


def scores_of(
    logits: Array,
    temperature: ArrayLike = 1.0,
    top_k: ArrayLike | None = None,
    top_p: ArrayLike | None = None,
) -> Array:
    """The logits that tokens are drawn by: tokens that are left out have -inf.

    Args:
        logits: the logits of the next token.
        temperature: divides the logits.
        top_k: number of tokens to draw from.
        top_p: probability of the tokens to draw from: the likeliest that reach it together.
    """
    logits = logits / temperature
    if top_k is not None:
        ranked = jnp.sort(logits, axis=-1)
        place = jnp.maximum(logits.shape[-1] - top_k, 0)
        least = jax.lax.dynamic_slice_in_dim(ranked, place, 1, axis=-1)
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if top_p is not None:
        order = jnp.argsort(logits, axis=-1)
        ranked = jnp.take_along_axis(logits, order, axis=-1)
        below = jnp.cumsum(jax.nn.softmax(ranked, axis=-1), axis=-1) <= 1 - top_p
        below = below.at[..., -1].set(False)
        left_out = jnp.take_along_axis(below, jnp.argsort(order, axis=-1), axis=-1)
        logits = jnp.where(left_out, -jnp.inf, logits)
    return logits


def next_token(logits: Array, key: Array | None, step: ArrayLike, options: dict[str, Any]) -> Array:
    """The likeliest token, or with a key a drawn one."""
    logits = logits.astype(jnp.float32)
    if key is None:
        return jnp.argmax(logits, axis=-1)
    return jax.random.categorical(jax.random.fold_in(key, step), scores_of(logits, **options))


@partial(jax.jit, static_argnames=("model", "new_tokens", "length", "eos", "pad"))
def generate_padded(
    model: LlamaForCausalLM,
    variables: Any,
    prompt: Array,
    prompt_mask: Array,
    key: Array | None,
    options: dict[str, Any],
    *,
    new_tokens: int,
    length: int,
    eos: tuple[int, ...],
    pad: int,
) -> Array:
    """The new tokens of a batch that is padded to a bucket: one compilation for each."""
    batch_size, prompt_length = prompt.shape
    # Everything behind the prompt is a token once it is written; until then it is in the future.
    mask = jnp.ones((batch_size, length), prompt_mask.dtype).at[:, :prompt_length].set(prompt_mask)
    positions = jnp.clip(jnp.cumsum(mask, axis=1) - 1, 0)

    def decode(tokens: Array, cache: Cache, index: ArrayLike) -> tuple[Array, Cache]:
        logits, cache = model.apply(
            variables,
            tokens,
            cache,
            index,
            mask,
            jax.lax.dynamic_slice_in_dim(positions, index, tokens.shape[1], axis=1),
            method="decode",
        )
        return logits[:, -1], cache

    def is_running(state: tuple[Array, ...]) -> Array:
        step, _, finished, *_ = state
        return (step < new_tokens) & ~finished.all() if eos else step < new_tokens

    def advance(state: Any) -> Any:
        step, tokens, finished, last, cache = state
        logits, cache = decode(last[:, None], cache, prompt_length - 1 + step)
        token = jnp.where(finished, pad, next_token(logits, key, step, options)).astype(last.dtype)
        tokens = jax.lax.dynamic_update_slice_in_dim(tokens, token[:, None], step, axis=1)
        finished = finished | jnp.isin(token, jnp.asarray(eos, token.dtype))
        return step + 1, tokens, finished, token, cache

    cache = init_cache(model.config, batch_size, length, cache_dtype(model, variables))
    # The loop starts with the last token of the prompt: logits of the others are not computed.
    _, cache = decode(prompt[:, :-1], cache, 0)
    tokens = jnp.full((batch_size, new_tokens), pad, prompt.dtype)
    finished = jnp.zeros(batch_size, jnp.bool_)
    return jax.lax.while_loop(is_running, advance, (0, tokens, finished, prompt[:, -1], cache))[1]


def cache_dtype(model: LlamaForCausalLM, variables: Any) -> DTypeLike:
    """The dtype that the model computes in."""
    dtype = getattr(model, "dtype", None)
    return dtype or jnp.result_type(*jax.tree.leaves(variables["params"]))


def require_mask(
    name: str, tokens: ArrayLike, mask_name: str, mask: ArrayLike | None
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and their mask; without a mask, nothing is padding.

    Raises:
        ValueError: there are no tokens, or others than integers from 0, or the mask has another shape.
    """
    ids = np.asarray(tokens)
    if ids.ndim != 2 or not ids.size:
        raise ValueError(f"{name} of shape {ids.shape}: pass (batch, length)")
    if ids.dtype.kind not in "iu" or ids.min() < 0:
        raise ValueError(f"{name}, {ids.dtype} from {ids.min()}: tokens are integers from 0")
    mask = np.ones(ids.shape, np.int32) if mask is None else np.asarray(mask)
    if mask.shape != ids.shape:
        raise ValueError(
            f"{mask_name} of shape {mask.shape}: pass the shape of {name}, {ids.shape}"
        )
    return ids, mask


def padded(
    tokens: ArrayLike, attention_mask: ArrayLike | None, pad: int
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and their mask, padded on the left to a bucket.

    Raises:
        ValueError: a prompt is empty or not padded on the left, or the mask has another shape.
    """
    ids, mask = require_mask("input_ids", tokens, "attention_mask", attention_mask)
    if not mask[:, -1].all():
        raise ValueError("attention_mask: a prompt ends with padding; pad on the left")
    missing = ((0, 0), (bucket_of(ids.shape[1]) - ids.shape[1], 0))
    return (
        np.pad(ids, missing, constant_values=pad).astype(np.int32),
        np.pad(mask, missing).astype(np.int32),
    )


def require_options(
    key: Array | None,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
) -> dict[str, Any]:
    """The options of sampling.

    Raises:
        ValueError: an option is out of range, or there is no key to sample with.
    """
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens={max_new_tokens}: pass at least 1")
    if key is None and (temperature != 1.0 or top_k is not None or top_p is not None):
        raise ValueError("temperature, top_k and top_p sample: pass a key, jax.random.key(0)")
    if temperature <= 0:
        raise ValueError(f"temperature={temperature}: pass a number above 0, or no key")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k={top_k}: pass at least 1")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p={top_p}: pass a number above 0 and up to 1")
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    return {name: value for name, value in options.items() if value is not None}


def require_length(bucket: int, prompt: int, new: int, length: int | None) -> int:
    """The length of the cache.

    Raises:
        ValueError: the cache is too short for the prompt and the new tokens.
    """
    if length is not None and length < bucket + new:
        raise ValueError(
            f"cache_length={length}: the prompt of {prompt} tokens is padded to {bucket}, and "
            f"{new} follow; pass at least {bucket + new}"
        )
    return bucket + new if length is None else length


def generate(
    model: LlamaForCausalLM,
    variables: Any,
    input_ids: ArrayLike,
    attention_mask: ArrayLike | None = None,
    *,
    max_new_tokens: int = 20,
    cache_length: int | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    eos_token_id: int | tuple[int, ...] | None = EOS_TOKEN_IDS,
    pad_token_id: int = PAD_TOKEN_ID,
    key: Array | None = None,
) -> Array:
    """The tokens that follow a batch of prompts, without the prompts: (batch, max_new_tokens).

    Args:
        model: the model.
        variables: its variables: `load_params()`.
        input_ids: the prompts, padded on the left.
        attention_mask: 1 for a token, 0 for padding; None: nothing is padding.
        max_new_tokens: number of tokens to generate.
        cache_length: length of the cache; None: as long as needed.
        temperature: divides the logits before sampling.
        top_k: number of tokens to sample from.
        top_p: probability of the tokens to sample from.
        eos_token_id: token or tokens that end a sequence; None: none does.
        pad_token_id: token behind the end of a sequence.
        key: key to sample with; None: the likeliest token is taken.

    Raises:
        ValueError: an argument is out of range, before anything is compiled.
    """
    options = require_options(key, max_new_tokens, temperature, top_k, top_p)
    prompt, mask = padded(input_ids, attention_mask, pad_token_id)
    bucket, count = prompt.shape[1], np.shape(input_ids)[1]
    length = require_length(bucket, count, max_new_tokens, cache_length)
    eos = eos_token_id if isinstance(eos_token_id, tuple) else (eos_token_id,)
    return generate_padded(
        model,
        variables,
        prompt,
        mask,
        key,
        options,
        new_tokens=max_new_tokens,
        length=length,
        eos=tuple(token for token in eos if token is not None),
        pad=pad_token_id,
    )
