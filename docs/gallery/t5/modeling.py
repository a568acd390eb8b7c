"""T5ForConditionalGeneration in Flax, ported from transformers.models.t5.modeling_t5."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from .config import T5ForConditionalGenerationConfig


def biased_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, bias: jax.Array, **options: Any
) -> jax.Array:
    """Attention with a bias on its scores; a query whose biases are all minus infinity gets 0."""
    bias = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
    sees = (bias > -jnp.inf).any(axis=-1, keepdims=True)
    found = jax.nn.dot_product_attention(
        query, key, value, bias=jnp.where(sees, bias, 0), **options
    )
    sees = sees.swapaxes(1, 2)
    return jnp.where(sees.reshape(sees.shape[-query.ndim :]), found, 0)


def relative_position_bucket(relative_position: jax.Array) -> jax.Array:
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


def sdpa_attention_forward(
    query: jax.Array, key: jax.Array, value: jax.Array, values: jax.Array
) -> jax.Array:
    # If we have a boolean mask, superpose both into a single float additive mask to use in
    # sdpa
    position_bias_mask = jnp.broadcast_to(
        values, (query.shape[0], values.shape[1], values.shape[2], values.shape[2])
    )
    return biased_attention(
        query.swapaxes(1, 2),
        key.swapaxes(1, 2),
        value.swapaxes(1, 2),
        scale=1.0,
        bias=position_bias_mask,
    )


def relative_position_bucket_2(relative_position: jax.Array) -> jax.Array:
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
    query: jax.Array, key: jax.Array, value: jax.Array, attention_mask: jax.Array, values: jax.Array
) -> jax.Array:
    # If we have a boolean mask, superpose both into a single float additive mask to use in
    # sdpa
    position_bias_mask = jnp.where(attention_mask, values, -3.4028234663852886e38)
    return biased_attention(
        query.swapaxes(1, 2),
        key.swapaxes(1, 2),
        value.swapaxes(1, 2),
        scale=1.0,
        bias=position_bias_mask,
    )


def sdpa_attention_forward_3(
    query: jax.Array, key: jax.Array, value: jax.Array, position_bias: jax.Array
) -> jax.Array:
    # If we have a boolean mask, superpose both into a single float additive mask to use in
    # sdpa
    position_bias_mask = jnp.broadcast_to(
        position_bias,
        (query.shape[0], position_bias.shape[1], position_bias.shape[2], position_bias.shape[3]),
    )
    return biased_attention(
        query.swapaxes(1, 2),
        key.swapaxes(1, 2),
        value.swapaxes(1, 2),
        scale=1.0,
        bias=position_bias_mask,
    )


def non_vmap_expansion_sdpa(q_indices: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Used to broadcast our mask_functions over the all 4 dimensions (b_idx, h_idx, q_idx,
    kv_idx) of the inputs."""
    q_indices = q_indices[None][:, None]
    q_indices_2 = q_indices[..., None]
    kv_indices = q_indices[..., None, :]
    return q_indices_2, kv_indices


def sdpa_mask(width: int, batch_size: int) -> jax.Array:
    """Create a 4D boolean mask of shape `(batch_size, 1, query_length, kv_length)` where a
    value of True indicates that the element should take part in the attention computation,
    and False that it should not."""
    q_arange = jnp.arange(width)
    # Apply mask function element-wise through broadcasting
    attention_mask_0, attention_mask_1 = non_vmap_expansion_sdpa(q_arange)
    attention_mask = attention_mask_1 <= attention_mask_0
    # Expand the mask to match batch size and query length if they weren't used in the mask
    # function
    return jnp.broadcast_to(
        attention_mask, (batch_size, 1, attention_mask.shape[2], attention_mask.shape[2])
    )


def create_causal_mask(width: int, batch_size: int) -> jax.Array:
    """Create a standard causal mask based on the attention implementation used (stored in the
    config)."""
    # We now create the mask
    return sdpa_mask(width, batch_size)


class T5LayerNorm(nn.Module):
    config: T5ForConditionalGenerationConfig

    def setup(self) -> None:
        self.weight = self.param("weight", nn.initializers.ones, (self.config.d_model,))

    def __call__(self, hidden_states: jax.Array) -> jax.Array:
        variance = jnp.square(hidden_states).mean(axis=-1, keepdims=True)
        hidden_states = hidden_states * jax.lax.rsqrt(variance + self.config.layer_norm_epsilon)
        return self.weight * hidden_states


class T5Attention(nn.Module):
    config: T5ForConditionalGenerationConfig
    has_relative_attention_bias: bool

    def setup(self) -> None:
        self.q = nn.Dense(self.config.num_heads * self.config.d_kv, use_bias=False)
        self.k = nn.Dense(self.config.num_heads * self.config.d_kv, use_bias=False)
        self.v = nn.Dense(self.config.num_heads * self.config.d_kv, use_bias=False)
        self.o = nn.Dense(self.config.d_model, use_bias=False)
        if self.has_relative_attention_bias:
            self.relative_attention_bias = nn.Embed(
                self.config.relative_attention_num_buckets, self.config.num_heads
            )

    def __call__(
        self,
        hidden_states: jax.Array,
        mask: jax.Array | None = None,
        key_value_states: jax.Array | None = None,
        position_bias: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        hidden_shape = (*hidden_states.shape[:2], -1, self.config.d_kv)
        query_states = self.q(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
        if key_value_states is not None:
            kv_shape = (*key_value_states.shape[:2], -1, self.config.d_kv)
            key_states = self.k(key_value_states).reshape(kv_shape).swapaxes(1, 2)
            value_states = self.v(key_value_states).reshape(kv_shape).swapaxes(1, 2)
            if position_bias is None:
                position_bias = jnp.zeros(
                    (1, self.config.num_heads, hidden_states.shape[1], key_value_states.shape[1]),
                    jnp.float32,
                )
            attn_output = sdpa_attention_forward_3(
                query_states, key_states, value_states, position_bias
            )
        else:
            key_states = self.k(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
            value_states = self.v(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
            if position_bias is None:
                context_position = jnp.arange(hidden_states.shape[1])
                context_position_2 = context_position[..., None]
                memory_position = context_position[None]
                relative_position = memory_position - context_position_2
                if mask is not None:
                    relative_position_bucket_ = relative_position_bucket_2(relative_position)
                else:
                    relative_position_bucket_ = relative_position_bucket(relative_position)
                values = self.relative_attention_bias(relative_position_bucket_)
                position_bias = values.transpose(2, 0, 1)[None]
            if mask is not None:
                attn_output = sdpa_attention_forward_2(
                    query_states, key_states, value_states, mask, position_bias
                )
            else:
                attn_output = sdpa_attention_forward(
                    query_states, key_states, value_states, position_bias
                )
        attn_output = attn_output.reshape(*attn_output.shape[:2], -1)
        attn_output = self.o(attn_output)
        return attn_output, position_bias


class T5DenseActDense(nn.Module):
    config: T5ForConditionalGenerationConfig

    def setup(self) -> None:
        self.wi = nn.Dense(self.config.d_ff, use_bias=False)
        self.wo = nn.Dense(self.config.d_model, use_bias=False)

    def __call__(self, hidden_states: jax.Array) -> jax.Array:
        hidden_states = self.wi(hidden_states)
        hidden_states = jax.nn.relu(hidden_states)
        return self.wo(hidden_states)


class T5LayerSelfAttention(nn.Module):
    config: T5ForConditionalGenerationConfig
    has_relative_attention_bias: bool

    def setup(self) -> None:
        self.SelfAttention = T5Attention(
            self.config, has_relative_attention_bias=self.has_relative_attention_bias
        )
        self.layer_norm = T5LayerNorm(self.config)

    def __call__(
        self,
        hidden_states: jax.Array,
        attention_mask: jax.Array | None = None,
        position_bias: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        normed_hidden_states = self.layer_norm(hidden_states)
        attention_output, position_bias = self.SelfAttention(
            normed_hidden_states, mask=attention_mask, position_bias=position_bias
        )
        attention_output = hidden_states + attention_output
        return attention_output, position_bias


class T5LayerFF(nn.Module):
    config: T5ForConditionalGenerationConfig

    def setup(self) -> None:
        self.DenseReluDense = T5DenseActDense(self.config)
        self.layer_norm = T5LayerNorm(self.config)

    def __call__(self, hidden_states: jax.Array) -> jax.Array:
        forwarded_states = self.layer_norm(hidden_states)
        forwarded_states = self.DenseReluDense(forwarded_states)
        return hidden_states + forwarded_states


class T5LayerCrossAttention(nn.Module):
    config: T5ForConditionalGenerationConfig

    def setup(self) -> None:
        self.EncDecAttention = T5Attention(self.config, has_relative_attention_bias=False)
        self.layer_norm = T5LayerNorm(self.config)

    def __call__(
        self,
        hidden_states: jax.Array,
        key_value_states: jax.Array,
        position_bias: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        normed_hidden_states = self.layer_norm(hidden_states)
        attention_output, position_bias = self.EncDecAttention(
            normed_hidden_states, key_value_states=key_value_states, position_bias=position_bias
        )
        layer_output = hidden_states + attention_output
        return layer_output, position_bias


class T5Block(nn.Module):
    config: T5ForConditionalGenerationConfig
    has_relative_attention_bias: bool
    is_decoder: bool

    def setup(self) -> None:
        if self.is_decoder:
            self.layer = [
                T5LayerSelfAttention(
                    self.config, has_relative_attention_bias=self.has_relative_attention_bias
                ),
                T5LayerCrossAttention(self.config),
                T5LayerFF(self.config),
            ]
        else:
            self.layer = [
                T5LayerSelfAttention(
                    self.config, has_relative_attention_bias=self.has_relative_attention_bias
                ),
                T5LayerFF(self.config),
            ]

    def __call__(
        self,
        hidden_states: jax.Array,
        attention_mask: jax.Array | None = None,
        position_bias: jax.Array | None = None,
        encoder_hidden_states: jax.Array | None = None,
        encoder_decoder_position_bias: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        cross_attn_position_bias: jax.Array | None = None
        hidden_states, self_attn_position_bias = self.layer[0](
            hidden_states, attention_mask=attention_mask, position_bias=position_bias
        )
        if attention_mask is not None:
            assert encoder_hidden_states is not None
            hidden_states, cross_attn_position_bias = self.layer[1](
                hidden_states, encoder_hidden_states, position_bias=encoder_decoder_position_bias
            )
            # Apply Feed Forward layer
            hidden_states = self.layer[2](hidden_states)
        else:
            hidden_states = self.layer[1](hidden_states)
        return hidden_states, self_attn_position_bias, cross_attn_position_bias


class T5Stack(nn.Module):
    config: T5ForConditionalGenerationConfig

    def setup(self) -> None:
        self.block = [
            T5Block(self.config, has_relative_attention_bias=True, is_decoder=False),
            T5Block(self.config, has_relative_attention_bias=False, is_decoder=False),
            T5Block(self.config, has_relative_attention_bias=False, is_decoder=False),
        ]
        self.final_layer_norm = T5LayerNorm(self.config)

    def __call__(self, input_ids: jax.Array, shared_weight: jax.Array) -> jax.Array:
        inputs_embeds = jnp.take(shared_weight, input_ids, axis=0)
        hidden_states, self_attention_position_bias, _ = self.block[0](inputs_embeds)
        hidden_states, _, _ = self.block[1](
            hidden_states, position_bias=self_attention_position_bias
        )
        hidden_states, _, _ = self.block[2](
            hidden_states, position_bias=self_attention_position_bias
        )
        return self.final_layer_norm(hidden_states)


class T5Stack2(nn.Module):
    config: T5ForConditionalGenerationConfig

    def setup(self) -> None:
        self.block = [
            T5Block(self.config, has_relative_attention_bias=True, is_decoder=True),
            T5Block(self.config, has_relative_attention_bias=False, is_decoder=True),
        ]
        self.final_layer_norm = T5LayerNorm(self.config)

    def __call__(
        self, input_ids: jax.Array, encoder_hidden_states: jax.Array, shared_weight: jax.Array
    ) -> jax.Array:
        inputs_embeds = jnp.take(shared_weight, input_ids, axis=0)
        attention_mask = create_causal_mask(input_ids.shape[1], input_ids.shape[0])
        hidden_states, self_attention_position_bias, cross_attention_position_bias = self.block[0](
            inputs_embeds,
            attention_mask=attention_mask,
            encoder_hidden_states=encoder_hidden_states,
        )
        hidden_states, _, _ = self.block[1](
            hidden_states,
            attention_mask=attention_mask,
            position_bias=self_attention_position_bias,
            encoder_hidden_states=encoder_hidden_states,
            encoder_decoder_position_bias=cross_attention_position_bias,
        )
        return self.final_layer_norm(hidden_states)


class T5ForConditionalGeneration(nn.Module):
    """T5 Model with a `language modeling` head on top."""

    config: T5ForConditionalGenerationConfig

    def setup(self) -> None:
        self.shared = nn.Embed(self.config.vocab_size, self.config.d_model)
        self.encoder = T5Stack(self.config)
        self.decoder = T5Stack2(self.config)

    def __call__(self, input_ids: jax.Array, decoder_input_ids: jax.Array) -> dict[str, jax.Array]:
        # Convert encoder inputs in embeddings if needed
        encoder_outputs = self.encoder(input_ids, self.shared.embedding)
        # Decode
        decoder_outputs = self.decoder(decoder_input_ids, encoder_outputs, self.shared.embedding)
        sequence_output = decoder_outputs * 0.1767766952966369
        lm_logits = self.shared.attend(sequence_output)
        return {"logits": lm_logits, "encoder_last_hidden_state": encoder_outputs}
