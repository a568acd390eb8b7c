"""`torch.nn.MultiheadAttention` as a linen module."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from converters.modules.functional.attention import attention, batched, causal_mask, unbatched


class MultiheadAttention(nn.Module):
    """torch's attention with torch's masks; weights named and shaped as in Flax's own.

    `query`, `key` and `value` have kernels (in, heads, features), `out` (heads, features, embed_dim),
    so that Flax's `MultiHeadDotProductAttention` takes the same weights where neither bias_k nor
    bias_v is there.

    Attributes:
        embed_dim: features of the query and of the output.
        num_heads: a divisor of embed_dim.
        dropout: of the attention weights.
        bias: whether the four projections have biases.
        add_bias_kv: whether a learned key and value (`bias_k`, `bias_v`) follow the others.
        add_zero_attn: whether a key and value of zeros follow.
        batch_first: inputs (batch, length, features); else (length, batch, features), as torch's.
    """

    embed_dim: int
    num_heads: int
    dropout: float = 0.0
    bias: bool = True
    add_bias_kv: bool = False
    add_zero_attn: bool = False
    batch_first: bool = False
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32
    precision: jax.lax.PrecisionLike = None
    kernel_init: nn.initializers.Initializer = nn.initializers.lecun_normal()
    bias_init: nn.initializers.Initializer = nn.initializers.zeros
    out_kernel_init: nn.initializers.Initializer = nn.initializers.lecun_normal()
    out_bias_init: nn.initializers.Initializer = nn.initializers.zeros

    @nn.compact
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
        *,
        deterministic: bool = True,
    ) -> tuple[Array, Array | None]:
        """Return output and attention weights (None unless needed), as in torch.

        Boolean masks have torch's polarity: True is "not allowed" (Flax's: "allowed"). `is_causal`
        without `attn_mask` creates the causal mask; torch requires both.
        """
        heads, features = self.num_heads, self.embed_dim // self.num_heads
        (query, key, value), key_padding_mask, had_batch = batched(
            (query, key, value), key_padding_mask, batch_first=self.batch_first
        )
        if is_causal and attn_mask is None:
            attn_mask = causal_mask(query.shape[1], key.shape[1])

        numerics: dict[str, Any] = {
            "dtype": self.dtype,
            "param_dtype": self.param_dtype,
            "precision": self.precision,
        }

        def project(name: str, x: Array) -> Array:
            start = {"kernel_init": self.kernel_init, "bias_init": self.bias_init}
            layer = nn.DenseGeneral(
                (heads, features), use_bias=self.bias, name=name, **numerics, **start
            )
            return layer(x)

        extra: dict[str, Array | None] = {"bias_k": None, "bias_v": None}
        if self.add_bias_kv:
            normal = nn.initializers.xavier_normal()
            shape = (heads, features)
            extra = {
                name: jnp.asarray(self.param(name, normal, shape, self.param_dtype), self.dtype)
                for name in extra
            }
        output, weights = attention(
            project("query", query),
            project("key", key),
            project("value", value),
            attn_mask=attn_mask,
            key_padding_mask=key_padding_mask,
            bias_k=extra["bias_k"],
            bias_v=extra["bias_v"],
            add_zero_attn=self.add_zero_attn,
            need_weights=need_weights,
            drop=nn.Dropout(self.dropout, deterministic=deterministic) if self.dropout else None,
        )
        start = {"kernel_init": self.out_kernel_init, "bias_init": self.out_bias_init}
        out = nn.DenseGeneral(
            self.embed_dim, axis=(-2, -1), use_bias=self.bias, name="out", **numerics, **start
        )
        output, weights = unbatched(
            out(output),
            weights,
            had_batch=had_batch,
            batch_first=self.batch_first,
            average=average_attn_weights,
        )
        return output, weights if need_weights else None
