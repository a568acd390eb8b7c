"""`torch.nn.MultiheadAttention` as an nnx module."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from converters.modules.functional.attention import attention, batched, causal_mask, unbatched


class MultiheadAttention(nnx.Module):
    """torch's attention with torch's masks; weights named and shaped as in Flax's own.

    `query`, `key` and `value` have kernels (in, heads, features), `out` (heads, features, embed_dim),
    so that `nnx.MultiHeadAttention` takes the same weights where key and value have the same
    features and neither bias_k nor bias_v is there.

    Args:
        embed_dim: features of the query and of the output.
        num_heads: a divisor of embed_dim.
        dropout: of the attention weights.
        bias: whether the four projections have biases.
        add_bias_kv: whether a learned key and value (`bias_k`, `bias_v`) follow the others.
        add_zero_attn: whether a key and value of zeros follow.
        kdim: features of the key; None: embed_dim.
        vdim: features of the value; None: embed_dim.
        batch_first: inputs (batch, length, features); else (length, batch, features), as torch's.
        dtype: of the computation.
        param_dtype: of the weights.
        precision: of the projections.
        kernel_init: of query, key and value; None: nnx's.
        bias_init: of query, key and value.
        out_kernel_init: of the output; None: nnx's.
        out_bias_init: of the output.
        rngs: for the weights and for dropout.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        precision: jax.lax.PrecisionLike = None,
        kernel_init: nnx.initializers.Initializer | None = None,
        bias_init: nnx.initializers.Initializer = nnx.initializers.zeros,
        out_kernel_init: nnx.initializers.Initializer | None = None,
        out_bias_init: nnx.initializers.Initializer = nnx.initializers.zeros,
        rngs: nnx.Rngs,
    ) -> None:
        heads = (num_heads, embed_dim // num_heads)
        self.add_zero_attn, self.batch_first = add_zero_attn, batch_first
        self.dtype = dtype
        options: dict[str, Any] = {"use_bias": bias, "rngs": rngs}
        options |= {"dtype": dtype, "param_dtype": param_dtype, "precision": precision}
        usual = nnx.initializers.lecun_normal()
        inwards = {"kernel_init": kernel_init or usual, "bias_init": bias_init, **options}
        self.query = nnx.LinearGeneral(embed_dim, heads, **inwards)
        self.key = nnx.LinearGeneral(kdim or embed_dim, heads, **inwards)
        self.value = nnx.LinearGeneral(vdim or embed_dim, heads, **inwards)
        start = {"kernel_init": out_kernel_init or usual, "bias_init": out_bias_init}
        self.out = nnx.LinearGeneral(heads, embed_dim, axis=(-2, -1), **start, **options)
        self.add_bias_kv = add_bias_kv
        if add_bias_kv:
            normal = nnx.initializers.xavier_normal()
            self.bias_k = nnx.Param(normal(rngs.params(), heads, param_dtype))
            self.bias_v = nnx.Param(normal(rngs.params(), heads, param_dtype))
        self.dropout = nnx.Dropout(dropout, rngs=rngs) if dropout else None

    def __call__(
        self,
        query: Array,
        key: Array,
        value: Array,
        key_padding_mask: Array | None = None,
        need_weights: bool = True,
        attn_mask: Array | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Array, Array | None]:
        """Return output and attention weights (None unless needed), as in torch.

        Boolean masks have torch's polarity: True is "not allowed" (Flax's: "allowed"). `is_causal`
        without `attn_mask` creates the causal mask; torch requires both.
        """
        (query, key, value), key_padding_mask, had_batch = batched(
            (query, key, value), key_padding_mask, batch_first=self.batch_first
        )
        if is_causal and attn_mask is None:
            attn_mask = causal_mask(query.shape[1], key.shape[1])
        output, weights = attention(
            self.query(query),
            self.key(key),
            self.value(value),
            attn_mask=attn_mask,
            key_padding_mask=key_padding_mask,
            bias_k=jnp.asarray(self.bias_k[...], self.dtype) if self.add_bias_kv else None,
            bias_v=jnp.asarray(self.bias_v[...], self.dtype) if self.add_bias_kv else None,
            add_zero_attn=self.add_zero_attn,
            need_weights=need_weights,
            drop=self.dropout,
        )
        output, weights = unbatched(
            self.out(output),
            weights,
            had_batch=had_batch,
            batch_first=self.batch_first,
            average=average_attn_weights,
        )
        return output, weights if need_weights else None
