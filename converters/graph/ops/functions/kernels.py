"""Attention by kernels that keep no matrix of scores: cuDNN on GPUs, splash attention on TPUs."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None = None,
    bias: jax.Array | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    implementation: str = "xla",
) -> jax.Array:
    """Attention of (batch, length, heads, width); a query that may see no key gets 0.

    Args:
        query: the queries. Their heads may be several times those of the keys.
        key: the keys.
        value: the values.
        mask: which keys each query may see, of (batch, heads, queries, keys); sides may be 1.
        bias: what is added to the scores, of the same form.
        is_causal: whether a query sees no keys behind its own place.
        scale: factor of the scores. None: one over the square root of the width.
        implementation: "xla", "cudnn" (GPUs), "splash" (TPUs), or "auto": the device's kernel, if it
            supports the arguments, else "xla".
    """
    shape = query.shape
    query, key, value = (
        array.reshape((1,) * (4 - array.ndim) + array.shape) for array in (query, key, value)
    )
    if mask is not None:
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    if bias is not None:
        bias = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
        seen = bias > -jnp.inf
        mask = seen if mask is None else mask & seen
        bias = jnp.where(seen, bias, 0)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if implementation == "auto":
        implementation = kernel_of_device()
        if implementation != "xla" and kernel_lacks(implementation, query, key, mask, bias):
            implementation = "xla"
    elif lacks := kernel_lacks(implementation, query, key, mask, bias):
        raise ValueError(f"attention={implementation!r}: {lacks}; use 'xla' or 'auto'")
    if implementation == "splash":
        attended = splash_attention(query, key, value, mask, is_causal=is_causal, scale=scale)
    else:
        if implementation == "cudnn" and mask is not None:
            mask = jnp.broadcast_to(mask, (*mask.shape[:2], query.shape[1], key.shape[1]))
        attended = jax.nn.dot_product_attention(
            query,
            key,
            value,
            bias,
            mask,
            is_causal=is_causal,
            scale=scale,
            implementation="cudnn" if implementation == "cudnn" else "xla",
        )
    if mask is not None:
        attended = jnp.where(sees_a_key(mask, query.shape[1], is_causal), attended, 0)
    return attended.reshape(shape)


def kernel_of_device() -> str:
    """Return the kernel of the device on which JAX runs, or "xla".

    XLA cannot divide splash attention over devices: it is the kernel of a single device, and within
    `jax.shard_map` over all axes of the mesh.
    """
    kernel = {"gpu": "cudnn", "tpu": "splash"}.get(jax.default_backend(), "xla")
    mesh = jax.sharding.get_abstract_mesh()
    mapped = bool(mesh.axis_names) and set(mesh.manual_axes) == set(mesh.axis_names)
    divided = jax.device_count() > 1 and not mapped
    return "xla" if kernel == "splash" and divided else kernel


def kernel_lacks(
    implementation: str,
    query: jax.Array,
    key: jax.Array,
    mask: jax.Array | None,
    bias: jax.Array | None,
) -> str:
    """Return why a kernel does not support the arguments, or "" if it does."""
    if implementation == "cudnn":
        if jax.default_backend() != "gpu":
            return f"JAX runs on {jax.default_backend()}, and cuDNN needs a GPU"
        if query.dtype not in (jnp.float16, jnp.bfloat16):
            return f"cuDNN needs 16 bits, not {query.dtype}"
        if query.shape[-1] % 8:
            return f"cuDNN needs heads of a multiple of 8, not {query.shape[-1]}"
        if (mask is not None or bias is not None) and (query.shape[1] % 2 or key.shape[1] % 2):
            return f"with a mask cuDNN needs even lengths, not {query.shape[1]} and {key.shape[1]}"
    elif implementation == "splash":
        if jax.default_backend() != "tpu":
            return f"JAX runs on {jax.default_backend()}, and splash attention needs a TPU"
        if query.dtype not in (jnp.bfloat16, jnp.float32):
            return f"splash attention needs bfloat16 or float32, not {query.dtype}"
        if bias is not None:
            return "splash attention has no bias"
        if mask is not None and mask.shape[1:3] != (1, 1):
            return "splash attention has no mask that differs by query or head, but a causal one"
    elif implementation != "xla":
        return "unknown; known are 'auto', 'xla', 'cudnn' and 'splash'"
    return ""


def sees_a_key(mask: jax.Array, length: int, is_causal: bool) -> jax.Array:
    """Whether each query may see a key, as (batch, length, heads, 1)."""
    if is_causal and mask.shape[2] == 1:  # a mask of keys alone: no matrix is needed
        seen = jnp.cumsum(mask, axis=-1) > 0
        last = jnp.minimum(jnp.arange(length), mask.shape[-1] - 1)
        return seen[:, :, 0, last].swapaxes(1, 2)[..., None]
    if is_causal:
        mask = mask & jnp.tril(jnp.ones(mask.shape[2:], jnp.bool_))
    return mask.any(axis=-1).swapaxes(1, 2)[..., None]


def splash_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None,
    *,
    is_causal: bool,
    scale: float,
    interpret: bool = False,
) -> jax.Array:
    """The TPU's splash attention, with lengths padded to the blocks that it computes.

    Args:
        query: the queries, of (batch, length, heads, width).
        key: the keys.
        value: the values.
        mask: which keys may be seen, of (batch, 1, 1, keys).
        is_causal: whether a query sees no keys behind its own place.
        scale: factor of the scores.
        interpret: whether to run the kernel without a TPU, slowly.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel,
        splash_attention_mask,
    )

    batch, length, heads, _ = query.shape
    lengths = [length, key.shape[1]]
    padded = [size + -size % 128 for size in lengths]
    arrays = [
        jnp.pad(array, ((0, 0), (0, whole - array.shape[1]), (0, 0), (0, 0))).swapaxes(1, 2)
        for array, whole in zip(
            (query * scale, key, value), (padded[0], *[padded[1]] * 2), strict=True
        )
    ]
    segments = None
    if mask is not None or padded[1] > lengths[1]:
        keys = jnp.ones((1, lengths[1])) if mask is None else mask[:, 0, 0]
        keys = jnp.broadcast_to(keys, (batch, lengths[1])).astype(jnp.int32)
        keys = jnp.pad(keys, ((0, 0), (0, padded[1] - lengths[1])))
        queries = jnp.ones((batch, padded[0]), jnp.int32)
        segments = splash_attention_kernel.SegmentIds(queries, keys)
    kind = splash_attention_mask.CausalMask if is_causal else splash_attention_mask.FullMask
    blocks = [next(size for size in (512, 256, 128) if whole % size == 0) for whole in padded]
    kernel = splash_attention_kernel.make_splash_mha(
        splash_attention_mask.MultiHeadMask([kind((padded[0], padded[1]))] * heads),
        head_shards=1,
        q_seq_shards=1,
        block_sizes=splash_attention_kernel.BlockSizes(
            block_q=blocks[0],
            block_kv=blocks[1],
            block_q_dkv=blocks[0],
            block_kv_dkv=blocks[1],
            block_q_dq=blocks[0],
            block_kv_dq=blocks[1],
        ),
        interpret=interpret,
    )
    attended = jax.vmap(kernel)(*arrays, segment_ids=segments)
    return attended.swapaxes(1, 2)[:, :length]
