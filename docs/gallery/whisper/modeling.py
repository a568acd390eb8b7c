"""WhisperForConditionalGeneration in Flax, ported from
transformers.models.whisper.modeling_whisper."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike
from safetensors import safe_open

from .config import WhisperForConditionalGenerationConfig


def masked_attention(
    query: Array, key: Array, value: Array, mask: Array | None, **options: Any
) -> Array:
    """Attention with an optional boolean mask; a query that may see no key gets 0."""
    if mask is None:
        return jax.nn.dot_product_attention(query, key, value, **options)
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    if options.pop("is_causal", False):
        mask = mask & jnp.tril(jnp.ones((query.shape[-3], key.shape[-3]), jnp.bool_))
    attended = jax.nn.dot_product_attention(query, key, value, mask=mask, **options)
    sees = mask.any(axis=-1).swapaxes(1, 2)[..., None]
    return jnp.where(sees.reshape(sees.shape[-query.ndim :]), attended, 0)


def zero_row(initializer: nn.initializers.Initializer, row: int) -> nn.initializers.Initializer:
    """An initializer of an embedding, with zeros for the token that pads."""
    return lambda key, shape, dtype: initializer(key, shape, dtype).at[row].set(0)


def stored(path: Sequence[str], name: str, shape: Sequence[int]) -> Array:
    """An array that the original computes when it is made; initial.safetensors has it for this size."""
    with safe_open(Path(__file__).with_name("initial.safetensors"), framework="numpy") as file:
        keys = set(file.keys())
        steps = [*path, name]
        # The model may be part of another one: then the path begins with that one's.
        ends = ["/".join(steps[start:]) for start in range(len(steps))]
        key = next((end for end in ends if end in keys), None)
        if key is None:
            raise ValueError(f"{'/'.join(steps)}: initial.safetensors lacks it")
        array = file.get_tensor(key)
    if array.shape != tuple(shape):
        raise ValueError(
            f"{key}: has {array.shape} in initial.safetensors; {tuple(shape)} is needed"
        )
    return jnp.asarray(array)


class PaddedEmbed(nn.Embed):
    """`torch.nn.Embedding` with `padding_idx`: looking that row up gives it no gradient."""

    padding_idx: int = 0

    def __call__(self, inputs: Array) -> Array:
        """Rows of the table: (…, features) for ids of shape (…)."""
        rows = super().__call__(inputs)
        padding = (inputs == self.padding_idx)[..., None]
        return jnp.where(padding, jax.lax.stop_gradient(rows), rows)


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


def sdpa_attention_forward(query: Array, key: Array, value: Array) -> Array:
    return jax.nn.dot_product_attention(
        query.swapaxes(1, 2), key.swapaxes(1, 2), value.swapaxes(1, 2), scale=1.0
    )


def sdpa_attention_forward_2(
    query: Array, key: Array, value: Array, attention_mask: Array
) -> Array:
    return masked_attention(
        query.swapaxes(1, 2), key.swapaxes(1, 2), value.swapaxes(1, 2), attention_mask, scale=1.0
    )


def non_vmap_expansion_sdpa(q_indices: Array) -> tuple[Array, Array]:
    """Used to broadcast our mask_functions over the all 4 dimensions (b_idx, h_idx, q_idx,
    kv_idx) of the inputs."""
    q_indices = q_indices[None, None]
    q_indices_2 = q_indices[..., None]
    kv_indices = q_indices[:, :, None]
    return q_indices_2, kv_indices


def create_causal_mask(length: int, batch_size: int) -> tuple[Array, Array]:
    """Create a standard causal mask based on the attention implementation used (stored in the
    config)."""
    q_arange = jnp.arange(length)
    # Apply mask function element-wise through broadcasting
    attention_mask_0, attention_mask_1 = non_vmap_expansion_sdpa(q_arange)
    result = attention_mask_1 <= attention_mask_0
    # Expand the mask to match batch size and query length if they weren't used in the mask
    # function
    attention_mask = jnp.broadcast_to(result, (batch_size, 1, result.shape[2], result.shape[2]))
    return result, attention_mask


def create_causal_mask_2(causal_mask_0: Array, output: Array | None, causal_mask_1: Array) -> Array:
    """Create a standard causal mask based on the attention implementation used (stored in the
    config)."""
    return causal_mask_1 if output is None else causal_mask_0 & output


class WhisperPositionalEmbedding(Module):
    config: WhisperForConditionalGenerationConfig

    def setup(self) -> None:
        init = nn.initializers.normal(0.02)
        self.embedding = self.cast_param("embedding", init, (24, self.config.d_model))

    def __call__(self, position_ids: Array) -> Array:
        return self.embedding[position_ids]


class WhisperAttention(Module):
    """Multi-headed attention from 'Attention Is All You Need' paper"""

    config: WhisperForConditionalGenerationConfig
    num_heads: int

    def setup(self) -> None:
        self.head_dim = self.config.d_model // self.num_heads
        dense: Any = partial(nn.Dense, kernel_init=nn.initializers.normal(0.02), **self.numerics)
        self.k_proj = dense(self.config.d_model, use_bias=False)
        self.v_proj = dense(self.config.d_model)
        self.q_proj = dense(self.config.d_model)
        self.out_proj = dense(self.config.d_model)

    def __call__(
        self,
        hidden_states: Array,
        key_value_states: Array | None = None,
        attention_mask: Array | None = None,
    ) -> Array:
        hidden_shape = (*hidden_states.shape[:2], -1, self.head_dim)
        # Scaling is susceptible to floating point arithmetics' imprecisions
        # which can lead to different results (this is dependent from model
        # to model, e.g. whisper is one such case). We therefore keep the
        # original order of scaling to follow the original implementation
        # and enforce no scaling (1.0) in the attention call below.
        query_states = (
            (self.q_proj(hidden_states) * self.head_dim**-0.5).reshape(hidden_shape).swapaxes(1, 2)
        )
        if key_value_states is not None:
            kv_shape = (
                key_value_states.shape[0],
                -1,
                self.config.decoder_attention_heads,
                self.head_dim,
            )
            key_states = self.k_proj(key_value_states).reshape(kv_shape).swapaxes(1, 2)
            value_states = self.v_proj(key_value_states).reshape(kv_shape).swapaxes(1, 2)
        else:
            kv_shape = hidden_states.shape[0], -1, self.num_heads, self.head_dim
            key_states = self.k_proj(hidden_states).reshape(kv_shape).swapaxes(1, 2)
            value_states = self.v_proj(hidden_states).reshape(kv_shape).swapaxes(1, 2)
        if attention_mask is not None:
            attn_output = sdpa_attention_forward_2(
                query_states, key_states, value_states, attention_mask
            )
        else:
            attn_output = sdpa_attention_forward(query_states, key_states, value_states)
        attn_output = attn_output.reshape(*attn_output.shape[:2], -1)
        return self.out_proj(attn_output)


class WhisperEncoderLayer(Module):
    config: WhisperForConditionalGenerationConfig

    def setup(self) -> None:
        self.self_attn = WhisperAttention(
            self.config, num_heads=self.config.encoder_attention_heads, **self.numerics
        )
        norm: Any = partial(nn.LayerNorm, epsilon=1e-5, use_fast_variance=False, **self.dtypes)
        self.self_attn_layer_norm = norm()
        dense: Any = partial(nn.Dense, kernel_init=nn.initializers.normal(0.02), **self.numerics)
        self.fc1 = dense(self.config.encoder_ffn_dim)
        self.fc2 = dense(self.config.d_model)
        self.final_layer_norm = norm()

    def __call__(self, hidden_states: Array) -> Array:
        residual = hidden_states
        hidden_states = self.self_attn_layer_norm(hidden_states)
        hidden_states = self.self_attn(hidden_states)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.final_layer_norm(hidden_states)
        hidden_states = jax.nn.gelu(self.fc1(hidden_states), approximate=False)
        hidden_states = self.fc2(hidden_states)
        return residual + hidden_states


class WhisperDecoderLayer(Module):
    config: WhisperForConditionalGenerationConfig

    def setup(self) -> None:
        whisper_attention: Any = partial(
            WhisperAttention, num_heads=self.config.decoder_attention_heads, **self.numerics
        )
        self.self_attn = whisper_attention(self.config)
        norm: Any = partial(nn.LayerNorm, epsilon=1e-5, use_fast_variance=False, **self.dtypes)
        self.self_attn_layer_norm = norm()
        self.encoder_attn = whisper_attention(self.config)
        self.encoder_attn_layer_norm = norm()
        dense: Any = partial(nn.Dense, kernel_init=nn.initializers.normal(0.02), **self.numerics)
        self.fc1 = dense(self.config.decoder_ffn_dim)
        self.fc2 = dense(self.config.d_model)
        self.final_layer_norm = norm()

    def __call__(
        self, hidden_states: Array, attention_mask: Array, encoder_hidden_states: Array
    ) -> Array:
        residual = hidden_states
        hidden_states = self.self_attn_layer_norm(hidden_states)
        # Self Attention
        hidden_states = self.self_attn(hidden_states, attention_mask=attention_mask)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.encoder_attn_layer_norm(hidden_states)
        hidden_states = self.encoder_attn(hidden_states, key_value_states=encoder_hidden_states)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.final_layer_norm(hidden_states)
        hidden_states = jax.nn.gelu(self.fc1(hidden_states), approximate=False)
        hidden_states = self.fc2(hidden_states)
        return residual + hidden_states


class WhisperEncoder(Module):
    """Transformer encoder consisting of *config.encoder_layers* self attention layers."""

    config: WhisperForConditionalGenerationConfig

    def setup(self) -> None:
        init = nn.initializers.normal(0.02)
        conv: Any = partial(
            nn.Conv, kernel_size=(3,), padding=((1, 1),), kernel_init=init, **self.numerics
        )
        self.conv1 = conv(self.config.d_model)
        self.conv2 = conv(self.config.d_model, strides=(2,))
        self.embed_positions = nn.Embed(
            self.config.max_source_positions,
            self.config.d_model,
            embedding_init=lambda key, shape, dtype: stored(
                (*self.path, "embed_positions"), "weight", shape
            ).astype(dtype),
            **self.dtypes,
        )
        self.layers = [
            WhisperEncoderLayer(self.config, **self.numerics)
            for _ in range(self.config.encoder_layers)
        ]
        self.layer_norm = nn.LayerNorm(epsilon=1e-5, use_fast_variance=False, **self.dtypes)

    def __call__(self, input_features: Array) -> Array:
        inputs_embeds = jax.nn.gelu(self.conv1(input_features.swapaxes(1, 2)), approximate=False)
        inputs_embeds = jax.nn.gelu(self.conv2(inputs_embeds), approximate=False)
        all_positions = jnp.arange(self.config.max_source_positions)
        hidden_states = inputs_embeds + self.embed_positions(all_positions)
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return self.layer_norm(hidden_states)


class WhisperDecoder(Module):
    """Transformer decoder consisting of *config.decoder_layers* layers."""

    config: WhisperForConditionalGenerationConfig

    def setup(self) -> None:
        self.embed_tokens = PaddedEmbed(
            self.config.vocab_size,
            self.config.d_model,
            padding_idx=0,
            embedding_init=zero_row(nn.initializers.normal(0.02), 0),
            **self.dtypes,
        )
        self.embed_positions = WhisperPositionalEmbedding(self.config, **self.numerics)
        self.layers = [
            WhisperDecoderLayer(self.config, **self.numerics)
            for _ in range(self.config.decoder_layers)
        ]
        self.layer_norm = nn.LayerNorm(epsilon=1e-5, use_fast_variance=False, **self.dtypes)

    def __call__(
        self, input_ids: Array, attention_mask: Array | None, encoder_hidden_states: Array
    ) -> Array:
        inputs_embeds = self.embed_tokens(input_ids)
        position_ids = jnp.arange(input_ids.shape[1])
        position_ids = jnp.tile(position_ids[None], (input_ids.shape[0], 1))
        positions = self.embed_positions(position_ids)
        hidden_states = inputs_embeds + positions
        causal_mask_0, causal_mask_1 = create_causal_mask(input_ids.shape[1], input_ids.shape[0])
        padding_mask = (
            None if attention_mask is None else attention_mask.astype(bool)[:, None, None]
        )
        causal_mask = create_causal_mask_2(causal_mask_0, padding_mask, causal_mask_1)
        for layer in self.layers:
            hidden_states = layer(hidden_states, causal_mask, encoder_hidden_states)
        return self.layer_norm(hidden_states)


class WhisperModel(Module):
    """The bare Whisper Model outputting raw hidden-states without any specific head on top."""

    config: WhisperForConditionalGenerationConfig

    def setup(self) -> None:
        self.encoder = WhisperEncoder(self.config, **self.numerics)
        self.decoder = WhisperDecoder(self.config, **self.numerics)

    def __call__(
        self, input_features: Array, decoder_input_ids: Array, decoder_attention_mask: Array | None
    ) -> tuple[Array, Array]:
        encoder_outputs = self.encoder(input_features)
        # decoder outputs consists of (dec_features, past_key_values, dec_hidden, dec_attn)
        decoder_outputs = self.decoder(decoder_input_ids, decoder_attention_mask, encoder_outputs)
        return decoder_outputs, encoder_outputs


class WhisperForConditionalGeneration(Module):
    """The Whisper Model with a language modeling head."""

    config: WhisperForConditionalGenerationConfig

    def setup(self) -> None:
        self.model = WhisperModel(self.config, **self.numerics)

    def __call__(
        self,
        input_features: Array,
        decoder_input_ids: Array,
        decoder_attention_mask: Array | None = None,
    ) -> dict[str, Array]:
        outputs_0, outputs_1 = self.model(input_features, decoder_input_ids, decoder_attention_mask)
        lm_logits = self.model.decoder.embed_tokens.attend(outputs_0)
        return {"logits": lm_logits, "encoder_last_hidden_state": outputs_1}
