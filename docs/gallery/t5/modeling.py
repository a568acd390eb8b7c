"""T5ForConditionalGeneration in Flax, ported from transformers.models.t5.modeling_t5."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from .config import T5ForConditionalGenerationConfig


def dropout_attention(
    query: Array,
    key: Array,
    value: Array,
    dropout: Callable[[Array], Array],
    mask: Array | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Array:
    """Attention of (…, heads, length, width) with a dropout of its weights; heads may share keys."""
    if query.ndim > 3 and query.shape[-3] != key.shape[-3]:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (jnp.repeat(array, groups, axis=-3) for array in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        past = jnp.tril(jnp.ones(scores.shape[-2:], jnp.bool_))
        mask = past if mask is None else mask & past
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf) if mask.dtype == jnp.bool_ else scores + mask
    sees = (scores > -jnp.inf).any(axis=-1, keepdims=True)
    weights = jax.nn.softmax(jnp.where(sees, scores, 0).astype(jnp.float32), axis=-1)
    return dropout(jnp.where(sees, weights, 0).astype(value.dtype)) @ value


def dropout(key: Array, x: Array, rate: float, axes: Sequence[int] | None = None) -> Array:
    """Zeros in the place of some elements, the others scaled.

    With `axes` an element along these is kept or not as a whole.
    """
    if rate == 1:
        return jnp.zeros_like(x)
    shape = [side if axes is None or axis in axes else 1 for axis, side in enumerate(x.shape)]
    keep = jax.random.bernoulli(key, 1 - rate, shape)
    return jnp.where(keep, x / (1 - rate), 0)


class Module(nn.Module, kw_only=True):
    """A module of this model.

    Attributes:
        dtype: dtype of the computation, or None for that of the weights and inputs.
        param_dtype: dtype of the weights that `init` makes.
        precision: precision of the matrix products in layers.
    """

    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32
    precision: jax.lax.PrecisionLike = None

    @property
    def dtypes(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "param_dtype": self.param_dtype}

    @property
    def numerics(self) -> dict[str, Any]:
        return {**self.dtypes, "precision": self.precision}

    def cast_param(self, name: str, init: Any, shape: tuple[int, ...]) -> Array:
        """A weight in the dtype of the computation."""
        return jnp.asarray(self.param(name, init, shape, self.param_dtype), self.dtype)


def relative_position_bucket(relative_position: Array) -> Array:
    """Adapted from Mesh Tensorflow:
    https://github.com/tensorflow/mesh/blob/0cb87fe07da627bf0b7e60475d59f95ed6b5be3d/mesh_tensorflow/transformer/transformer_layers.py#L593"""
    relative_buckets = (relative_position > 0).astype(jnp.int32) * 16
    relative_position = jnp.abs(relative_position)
    is_small = relative_position < 8
    # The other half of the buckets are for logarithmically bigger bins in positions up to
    # max_distance
    relative_position_if_large = (
        jnp.log(relative_position.astype(jnp.float32) / 8) / 2.772588722239781 * 8
    )
    relative_position_if_large = relative_position_if_large.astype(jnp.int32)
    relative_position_if_large = relative_position_if_large + 8
    relative_position_if_large_2 = jnp.full_like(relative_position_if_large, 15)
    relative_position_if_large = jnp.minimum(
        relative_position_if_large, relative_position_if_large_2
    )
    return relative_buckets + jnp.where(is_small, relative_position, relative_position_if_large)


def create_position_bias_mask(attention_mask: Array | None, values: Array) -> Array:
    """Create a floating-point dtype mask to use with sdpa."""
    # If we have a boolean mask, superpose both into a single float additive mask to use in
    # sdpa
    return (
        values
        if attention_mask is None
        else jnp.where(attention_mask, values, jnp.finfo(values.dtype).min)
    )


def sdpa_attention_forward(
    query: Array,
    key: Array,
    value: Array,
    attention_mask: Array | None,
    values: Array,
    dropout: Callable[[Array], Array],
) -> Array:
    attention_mask = create_position_bias_mask(attention_mask, values)
    attn_output = dropout_attention(query, key, value, dropout, mask=attention_mask, scale=1.0)
    return attn_output.swapaxes(1, 2)


def relative_position_bucket_2(relative_position: Array) -> Array:
    """Adapted from Mesh Tensorflow:
    https://github.com/tensorflow/mesh/blob/0cb87fe07da627bf0b7e60475d59f95ed6b5be3d/mesh_tensorflow/transformer/transformer_layers.py#L593"""
    relative_position = -jnp.minimum(relative_position, jnp.zeros_like(relative_position))
    is_small = relative_position < 16
    # The other half of the buckets are for logarithmically bigger bins in positions up to
    # max_distance
    relative_position_if_large = (
        jnp.log(relative_position.astype(jnp.float32) / 16) / 2.0794415416798357 * 16
    )
    relative_position_if_large = relative_position_if_large.astype(jnp.int32)
    relative_position_if_large = relative_position_if_large + 16
    relative_position_if_large_2 = jnp.full_like(relative_position_if_large, 31)
    relative_position_if_large = jnp.minimum(
        relative_position_if_large, relative_position_if_large_2
    )
    return jnp.where(is_small, relative_position, relative_position_if_large)


def sdpa_attention_forward_2(
    query: Array,
    key: Array,
    value: Array,
    attention_mask: Array,
    values: Array,
    dropout: Callable[[Array], Array],
) -> Array:
    # If we have a boolean mask, superpose both into a single float additive mask to use in
    # sdpa
    position_bias_mask = jnp.where(attention_mask, values, jnp.finfo(query.dtype).min)
    attn_output = dropout_attention(query, key, value, dropout, mask=position_bias_mask, scale=1.0)
    return attn_output.swapaxes(1, 2)


def non_vmap_expansion_sdpa(q_indices: Array) -> tuple[Array, Array]:
    """Used to broadcast our mask_functions over the all 4 dimensions (b_idx, h_idx, q_idx,
    kv_idx) of the inputs."""
    q_indices = q_indices[None, None]
    q_indices_2 = q_indices[..., None]
    kv_indices = q_indices[:, :, None]
    return q_indices_2, kv_indices


def create_causal_mask(width: int, batch_size: int) -> tuple[Array, Array]:
    """Create a standard causal mask based on the attention implementation used (stored in the
    config)."""
    q_arange = jnp.arange(width)
    # Apply mask function element-wise through broadcasting
    attention_mask_0, attention_mask_1 = non_vmap_expansion_sdpa(q_arange)
    result = attention_mask_1 <= attention_mask_0
    # Expand the mask to match batch size and query length if they weren't used in the mask
    # function
    attention_mask = jnp.broadcast_to(result, (batch_size, 1, result.shape[2], result.shape[2]))
    return result, attention_mask


class T5LayerNorm(Module):
    config: T5ForConditionalGenerationConfig

    def setup(self) -> None:
        self.weight = self.cast_param("weight", nn.initializers.ones, (self.config.d_model,))

    def __call__(self, hidden_states: Array) -> Array:
        dtype = hidden_states.dtype
        variance = jnp.square(hidden_states.astype(jnp.float32)).mean(axis=-1, keepdims=True)
        hidden_states = hidden_states * jax.lax.rsqrt(variance + self.config.layer_norm_epsilon)
        hidden_states = hidden_states.astype(dtype)
        return self.weight * hidden_states


class T5Attention(Module):
    config: T5ForConditionalGenerationConfig
    has_relative_attention_bias: bool
    is_decoder: bool
    is_causal: bool

    def setup(self) -> None:
        self.attn_dropout = nn.Dropout(self.config.dropout_rate)
        dense: Any = partial(nn.Dense, use_bias=False, **self.numerics)
        self.q = dense(
            self.config.num_heads * self.config.d_kv,
            kernel_init=nn.initializers.normal(
                self.config.initializer_factor * (self.config.d_model * self.config.d_kv) ** -0.5
            ),
        )
        init = nn.initializers.normal(self.config.initializer_factor * self.config.d_model**-0.5)
        self.k = dense(self.config.num_heads * self.config.d_kv, kernel_init=init)
        self.v = dense(self.config.num_heads * self.config.d_kv, kernel_init=init)
        self.o = dense(
            self.config.d_model,
            kernel_init=nn.initializers.normal(
                self.config.initializer_factor * (self.config.num_heads * self.config.d_kv) ** -0.5
            ),
        )
        if self.has_relative_attention_bias:
            self.relative_attention_bias = nn.Embed(
                self.config.relative_attention_num_buckets,
                self.config.num_heads,
                embedding_init=init,
                **self.dtypes,
            )

    def __call__(
        self,
        hidden_states: Array,
        mask: Array | None,
        key_value_states: Array | None = None,
        position_bias: Array | None = None,
        deterministic: bool = True,
    ) -> tuple[Array, Array]:
        hidden_shape = (*hidden_states.shape[:2], -1, self.config.d_kv)
        query_states = self.q(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
        if key_value_states is not None:
            kv_shape = (*key_value_states.shape[:2], -1, self.config.d_kv)
            key_states = self.k(key_value_states).reshape(kv_shape).swapaxes(1, 2)
            value_states = self.v(key_value_states).reshape(kv_shape).swapaxes(1, 2)
            if position_bias is None:
                position_bias = jnp.zeros(
                    (1, self.config.num_heads, hidden_states.shape[1], key_value_states.shape[1]),
                    hidden_states.dtype,
                )
        else:
            key_states = self.k(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
            value_states = self.v(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
            if position_bias is None:
                context_position = jnp.arange(hidden_states.shape[1])
                context_position_2 = context_position[..., None]
                memory_position = context_position[None]
                relative_position = memory_position - context_position_2
                if self.is_decoder:
                    relative_position_bucket_ = relative_position_bucket_2(relative_position)
                else:
                    relative_position_bucket_ = relative_position_bucket(relative_position)
                values = self.relative_attention_bias(relative_position_bucket_)
                position_bias = values.transpose(2, 0, 1)[None]
        if self.is_causal:
            attn_output = sdpa_attention_forward_2(
                query_states,
                key_states,
                value_states,
                mask,
                position_bias,
                partial(self.attn_dropout, deterministic=deterministic),
            )
        else:
            attn_output = sdpa_attention_forward(
                query_states,
                key_states,
                value_states,
                mask,
                position_bias,
                partial(self.attn_dropout, deterministic=deterministic),
            )
        attn_output = attn_output.reshape(*attn_output.shape[:2], -1)
        attn_output = self.o(attn_output)
        return attn_output, position_bias


class T5DenseActDense(Module):
    config: T5ForConditionalGenerationConfig

    def setup(self) -> None:
        dense: Any = partial(nn.Dense, use_bias=False, **self.numerics)
        init = nn.initializers.normal(self.config.initializer_factor * self.config.d_model**-0.5)
        self.wi = dense(self.config.d_ff, kernel_init=init)
        self.wo = dense(
            self.config.d_model,
            kernel_init=nn.initializers.normal(
                self.config.initializer_factor * self.config.d_ff**-0.5
            ),
        )
        self.dropout = nn.Dropout(self.config.dropout_rate)

    def __call__(self, hidden_states: Array, deterministic: bool = True) -> Array:
        hidden_states = self.wi(hidden_states)
        hidden_states = jax.nn.relu(hidden_states)
        hidden_states = self.dropout(hidden_states, deterministic=deterministic)
        return self.wo(hidden_states)


class T5LayerSelfAttention(Module):
    config: T5ForConditionalGenerationConfig
    is_decoder: bool
    has_relative_attention_bias: bool

    def setup(self) -> None:
        self.SelfAttention = T5Attention(
            self.config,
            has_relative_attention_bias=self.has_relative_attention_bias,
            is_decoder=self.is_decoder,
            is_causal=self.is_decoder,
            **self.numerics,
        )
        self.layer_norm = T5LayerNorm(self.config, **self.numerics)
        self.dropout = nn.Dropout(self.config.dropout_rate)

    def __call__(
        self,
        hidden_states: Array,
        attention_mask: Array | None,
        position_bias: Array | None = None,
        deterministic: bool = True,
    ) -> tuple[Array, Array | None]:
        normed_hidden_states = self.layer_norm(hidden_states)
        attention_output, position_bias = self.SelfAttention(
            normed_hidden_states,
            attention_mask,
            position_bias=position_bias,
            deterministic=deterministic,
        )
        attention_output = hidden_states + self.dropout(
            attention_output, deterministic=deterministic
        )
        return attention_output, position_bias


class T5LayerFF(Module):
    config: T5ForConditionalGenerationConfig

    def setup(self) -> None:
        self.DenseReluDense = T5DenseActDense(self.config, **self.numerics)
        self.layer_norm = T5LayerNorm(self.config, **self.numerics)
        self.dropout = nn.Dropout(self.config.dropout_rate)

    def __call__(self, hidden_states: Array, deterministic: bool = True) -> Array:
        forwarded_states = self.layer_norm(hidden_states)
        forwarded_states = self.DenseReluDense(forwarded_states, deterministic=deterministic)
        return hidden_states + self.dropout(forwarded_states, deterministic=deterministic)


class T5LayerCrossAttention(Module):
    config: T5ForConditionalGenerationConfig

    def setup(self) -> None:
        self.EncDecAttention = T5Attention(
            self.config,
            has_relative_attention_bias=False,
            is_decoder=True,
            is_causal=False,
            **self.numerics,
        )
        self.layer_norm = T5LayerNorm(self.config, **self.numerics)
        self.dropout = nn.Dropout(self.config.dropout_rate)

    def __call__(
        self,
        hidden_states: Array,
        key_value_states: Array,
        attention_mask: Array | None,
        position_bias: Array | None = None,
        deterministic: bool = True,
    ) -> tuple[Array, Array | None]:
        normed_hidden_states = self.layer_norm(hidden_states)
        attention_output, position_bias = self.EncDecAttention(
            normed_hidden_states,
            attention_mask,
            key_value_states=key_value_states,
            position_bias=position_bias,
            deterministic=deterministic,
        )
        layer_output = hidden_states + self.dropout(attention_output, deterministic=deterministic)
        return layer_output, position_bias


class T5Block(Module):
    config: T5ForConditionalGenerationConfig
    has_relative_attention_bias: bool
    is_decoder: bool

    def setup(self) -> None:
        if self.is_decoder:
            self.layer = [
                T5LayerSelfAttention(
                    self.config,
                    is_decoder=True,
                    has_relative_attention_bias=self.has_relative_attention_bias,
                    **self.numerics,
                ),
                T5LayerCrossAttention(self.config, **self.numerics),
                T5LayerFF(self.config, **self.numerics),
            ]
        else:
            self.layer = [
                T5LayerSelfAttention(
                    self.config,
                    is_decoder=False,
                    has_relative_attention_bias=self.has_relative_attention_bias,
                    **self.numerics,
                ),
                T5LayerFF(self.config, **self.numerics),
            ]

    def __call__(
        self,
        hidden_states: Array,
        attention_mask: Array | None,
        position_bias: Array | None = None,
        encoder_hidden_states: Array | None = None,
        encoder_attention_mask: Array | None = None,
        encoder_decoder_position_bias: Array | None = None,
        deterministic: bool = True,
    ) -> tuple[Array, Array, Array | None]:
        cross_attn_position_bias: Array | None = None
        hidden_states, self_attn_position_bias = self.layer[0](
            hidden_states, attention_mask, position_bias=position_bias, deterministic=deterministic
        )
        if encoder_hidden_states is not None:
            hidden_states, cross_attn_position_bias = self.layer[1](
                hidden_states,
                encoder_hidden_states,
                encoder_attention_mask,
                position_bias=encoder_decoder_position_bias,
                deterministic=deterministic,
            )
            # Apply Feed Forward layer
            hidden_states = self.layer[2](hidden_states, deterministic=deterministic)
        else:
            hidden_states = self.layer[1](hidden_states, deterministic=deterministic)
        return hidden_states, self_attn_position_bias, cross_attn_position_bias


class T5Stack(Module):
    config: T5ForConditionalGenerationConfig

    def setup(self) -> None:
        block: Any = partial(T5Block, is_decoder=False, **self.numerics)
        self.block = [
            block(self.config, has_relative_attention_bias=True),
            block(self.config, has_relative_attention_bias=False),
            block(self.config, has_relative_attention_bias=False),
        ]
        self.final_layer_norm = T5LayerNorm(self.config, **self.numerics)
        self.dropout = nn.Dropout(self.config.dropout_rate)

    def __call__(
        self,
        input_ids: Array,
        attention_mask: Array | None,
        shared_weight: Array,
        deterministic: bool = True,
    ) -> Array:
        inputs_embeds = jnp.take(shared_weight, input_ids, axis=0)
        padding_mask = (
            None if attention_mask is None else attention_mask.astype(bool)[:, None, None]
        )
        result = (
            None
            if padding_mask is None
            else jnp.broadcast_to(
                padding_mask, (input_ids.shape[0], 1, input_ids.shape[1], input_ids.shape[1])
            )
        )
        hidden_states = self.dropout(inputs_embeds, deterministic=deterministic)
        hidden_states, self_attention_position_bias, _ = self.block[0](
            hidden_states, result, deterministic=deterministic
        )
        hidden_states, _, _ = self.block[1](
            hidden_states,
            result,
            position_bias=self_attention_position_bias,
            deterministic=deterministic,
        )
        hidden_states, _, _ = self.block[2](
            hidden_states,
            result,
            position_bias=self_attention_position_bias,
            deterministic=deterministic,
        )
        hidden_states = self.final_layer_norm(hidden_states)
        return self.dropout(hidden_states, deterministic=deterministic)


class T5Stack2(Module):
    config: T5ForConditionalGenerationConfig

    def setup(self) -> None:
        block: Any = partial(T5Block, is_decoder=True, **self.numerics)
        self.block = [
            block(self.config, has_relative_attention_bias=True),
            block(self.config, has_relative_attention_bias=False),
        ]
        self.final_layer_norm = T5LayerNorm(self.config, **self.numerics)
        self.dropout = nn.Dropout(self.config.dropout_rate)

    def __call__(
        self,
        input_ids: Array,
        attention_mask: Array | None,
        encoder_hidden_states: Array,
        encoder_attention_mask: Array | None,
        shared_weight: Array,
        deterministic: bool = True,
    ) -> Array:
        inputs_embeds = jnp.take(shared_weight, input_ids, axis=0)
        attention_mask_0, attention_mask_1 = create_causal_mask(
            input_ids.shape[1], input_ids.shape[0]
        )
        padding_mask = (
            None if attention_mask is None else attention_mask.astype(bool)[:, None, None]
        )
        padding_mask_2 = (
            None
            if encoder_attention_mask is None
            else encoder_attention_mask.astype(bool)[:, None, None]
        )
        result = (
            None
            if padding_mask_2 is None
            else jnp.broadcast_to(
                padding_mask_2,
                (input_ids.shape[0], 1, input_ids.shape[1], encoder_hidden_states.shape[1]),
            )
        )
        hidden_states = self.dropout(inputs_embeds, deterministic=deterministic)
        result_2 = attention_mask_1 if padding_mask is None else attention_mask_0 & padding_mask
        hidden_states, self_attention_position_bias, cross_attention_position_bias = self.block[0](
            hidden_states,
            result_2,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=result,
            deterministic=deterministic,
        )
        hidden_states, _, _ = self.block[1](
            hidden_states,
            result_2,
            position_bias=self_attention_position_bias,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=result,
            encoder_decoder_position_bias=cross_attention_position_bias,
            deterministic=deterministic,
        )
        hidden_states = self.final_layer_norm(hidden_states)
        return self.dropout(hidden_states, deterministic=deterministic)


class T5ForConditionalGeneration(Module):
    """T5 Model with a `language modeling` head on top."""

    config: T5ForConditionalGenerationConfig

    def setup(self) -> None:
        init = nn.initializers.normal(self.config.initializer_factor * 1.0)
        self.shared = nn.Embed(
            self.config.vocab_size, self.config.d_model, embedding_init=init, **self.dtypes
        )
        self.encoder = T5Stack(self.config, **self.numerics)
        self.decoder = T5Stack2(self.config, **self.numerics)

    def __call__(
        self,
        input_ids: Array,
        decoder_input_ids: Array,
        attention_mask: Array | None = None,
        decoder_attention_mask: Array | None = None,
        deterministic: bool = True,
    ) -> dict[str, Array]:
        # Convert encoder inputs in embeddings if needed
        encoder_outputs = self.encoder(
            input_ids,
            attention_mask,
            jnp.asarray(self.shared.embedding, self.dtype),
            deterministic=deterministic,
        )
        # Decode
        decoder_outputs = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs,
            attention_mask,
            jnp.asarray(self.shared.embedding, self.dtype),
            deterministic=deterministic,
        )
        sequence_output = decoder_outputs * self.config.d_model**-0.5
        lm_logits = self.shared.attend(sequence_output)
        return {"logits": lm_logits, "encoder_last_hidden_state": encoder_outputs}
