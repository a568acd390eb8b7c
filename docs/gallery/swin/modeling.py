"""SwinForImageClassification in Flax, ported from transformers.models.swin.modeling_swin."""

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

from .config import SwinForImageClassificationConfig


def biased_attention(
    query: Array, key: Array, value: Array, bias: Array | None, **options: Any
) -> Array:
    """Attention with a bias on its scores, if any; a query whose biases are all minus infinity gets 0."""
    if bias is None:
        return jax.nn.dot_product_attention(query, key, value, **options)
    bias = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
    sees = (bias > -jnp.inf).any(axis=-1, keepdims=True)
    attended = jax.nn.dot_product_attention(
        query, key, value, bias=jnp.where(sees, bias, 0), **options
    )
    sees = sees.swapaxes(1, 2)
    return jnp.where(sees.reshape(sees.shape[-query.ndim :]), attended, 0)


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


def sdpa_attention_forward(
    query: Array, key: Array, value: Array, relative_position_bias: Array
) -> Array:
    return biased_attention(
        query.swapaxes(1, 2), key.swapaxes(1, 2), value.swapaxes(1, 2), relative_position_bias
    )


def window_partition(hidden_states: Array, window_size: int) -> Array:
    """Partitions the given input into windows."""
    input_feature = hidden_states.reshape(
        hidden_states.shape[0], 6, window_size, 6, window_size, hidden_states.shape[3]
    )
    return input_feature.swapaxes(2, 3).reshape(
        -1, input_feature.shape[2], input_feature.shape[2], input_feature.shape[5]
    )


def window_reverse(windows: Array, window_size: int) -> Array:
    """Merges windows to produce higher resolution features."""
    windows = windows.reshape(-1, 6, 6, window_size, window_size, windows.shape[3])
    windows = windows.swapaxes(2, 3)
    return windows.reshape(-1, 24, 24, windows.shape[5])


def window_partition_2(input_feature: Array, window_size: int) -> Array:
    """Partitions the given input into windows."""
    input_feature = input_feature.reshape(1, 6, window_size, 6, window_size, 1)
    return input_feature.swapaxes(2, 3).reshape(
        -1, input_feature.shape[2], input_feature.shape[2], 1
    )


def get_attn_mask(window_size: int, size: int, dtype: DTypeLike) -> Array:
    """Build the cyclic-shift attention mask for shifted-window MSA; returns None when
    shift_size is 0."""
    h_idx = jnp.arange(24)
    h_region = (h_idx >= 20).astype(jnp.int32) + (h_idx >= 22).astype(jnp.int32)
    img_mask = h_region[None]
    img_mask = (img_mask[..., None, None] * 3 + img_mask[:, None][..., None]).astype(dtype)
    mask_windows = window_partition_2(img_mask, window_size)
    mask_windows = mask_windows.reshape(-1, size)
    attn_mask = mask_windows[:, None] - mask_windows[..., None]
    return jnp.where(attn_mask == 0, 0.0, jnp.where(attn_mask != 0, -100.0, attn_mask))


def window_partition_3(hidden_states: Array, window_size: int) -> Array:
    """Partitions the given input into windows."""
    input_feature = hidden_states.reshape(
        hidden_states.shape[0], 3, window_size, 3, window_size, -1
    )
    return input_feature.swapaxes(2, 3).reshape(
        -1, input_feature.shape[2], input_feature.shape[2], input_feature.shape[5]
    )


def window_reverse_2(windows: Array, window_size: int) -> Array:
    """Merges windows to produce higher resolution features."""
    windows = windows.reshape(-1, 3, 3, window_size, window_size, windows.shape[3])
    windows = windows.swapaxes(2, 3)
    return windows.reshape(-1, 12, 12, windows.shape[5])


def window_partition_4(input_feature: Array, window_size: int) -> Array:
    """Partitions the given input into windows."""
    input_feature = input_feature.reshape(1, 3, window_size, 3, window_size, 1)
    return input_feature.swapaxes(2, 3).reshape(
        -1, input_feature.shape[2], input_feature.shape[2], 1
    )


def get_attn_mask_2(window_size: int, size: int, dtype: DTypeLike) -> Array:
    """Build the cyclic-shift attention mask for shifted-window MSA; returns None when
    shift_size is 0."""
    h_idx = jnp.arange(12)
    h_region = (h_idx >= 8).astype(jnp.int32) + (h_idx >= 10).astype(jnp.int32)
    img_mask = h_region[None]
    img_mask = (img_mask[..., None, None] * 3 + img_mask[:, None][..., None]).astype(dtype)
    mask_windows = window_partition_4(img_mask, window_size)
    mask_windows = mask_windows.reshape(-1, size)
    attn_mask = mask_windows[:, None] - mask_windows[..., None]
    return jnp.where(attn_mask == 0, 0.0, jnp.where(attn_mask != 0, -100.0, attn_mask))


class SwinRelativePositionBias(Module):
    """Relative position bias for Swin's window-based attention, following the style of
    BeitRelativePositionBias."""

    config: SwinForImageClassificationConfig
    num_heads: int

    def setup(self) -> None:
        self.window_area = self.config.window_size * self.config.window_size
        self.relative_position_bias_table = self.cast_param(
            "relative_position_bias_table",
            nn.initializers.zeros,
            ((2 * self.config.window_size - 1) * (2 * self.config.window_size - 1), self.num_heads),
        )
        self.relative_position_index = self.variable(
            "buffers",
            "relative_position_index",
            stored,
            self.path,
            "relative_position_index",
            (256,),
        ).value

    def __call__(self) -> Array:
        relative_position_bias = self.relative_position_bias_table[self.relative_position_index]
        relative_position_bias = relative_position_bias.reshape(
            self.window_area, self.window_area, -1
        )
        # 1, num_heads, Wh*Ww, Wh*Ww
        return relative_position_bias.transpose(2, 0, 1)[None]


class SwinPatchEmbeddings(Module):
    """This class turns `pixel_values` of shape `(batch_size, num_channels, height, width)`
    into the initial `hidden_states` (patch embeddings) of shape `(batch_size, seq_length,
    hidden_size)` to be consumed by a Transformer."""

    config: SwinForImageClassificationConfig

    def setup(self) -> None:
        self.projection = nn.Conv(
            self.config.embed_dim,
            kernel_size=(self.config.patch_size, self.config.patch_size),
            strides=(self.config.patch_size, self.config.patch_size),
            padding="VALID",
            kernel_init=nn.initializers.normal(self.config.initializer_range),
            **self.numerics,
        )

    def __call__(self, pixel_values: Array) -> Array:
        embeddings = self.projection(jnp.moveaxis(pixel_values, 1, -1))
        return embeddings.reshape(embeddings.shape[0], -1, embeddings.shape[-1])


class SwinAttention(Module):
    config: SwinForImageClassificationConfig
    hidden_size: int
    num_heads: int

    def setup(self) -> None:
        init = nn.initializers.normal(self.config.initializer_range)
        dense: Any = partial(nn.Dense, kernel_init=init, **self.numerics)
        self.q_proj = dense(self.hidden_size)
        self.k_proj = dense(self.hidden_size)
        self.v_proj = dense(self.hidden_size)
        self.o_proj = dense(self.hidden_size)
        self.relative_position_bias = SwinRelativePositionBias(
            self.config, num_heads=self.num_heads, **self.numerics
        )

    def __call__(
        self,
        hidden_states: Array,
        attention_mask: Array | None = None,
        batch_size: int | None = None,
    ) -> Array:
        hidden_shape = (*hidden_states.shape[:2], -1, self.config.head_dim)
        query_states = self.q_proj(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
        key_states = self.k_proj(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
        value_states = self.v_proj(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
        # Combine relative position bias with the cyclic-shift attention mask for SW-MSA
        # 1, num_heads, ws*ws, ws*ws
        relative_position_bias = self.relative_position_bias()
        if attention_mask is not None:
            # Expand to (batch * num_windows, 1, ws*ws, ws*ws) for broadcasting
            attention_mask = attention_mask[:, None]
            attention_mask = attention_mask[None]
            assert batch_size is not None
            attention_mask = jnp.broadcast_to(
                attention_mask,
                (
                    batch_size,
                    attention_mask.shape[1],
                    1,
                    attention_mask.shape[3],
                    attention_mask.shape[4],
                ),
            )
            attention_mask = attention_mask.reshape(
                -1, 1, attention_mask.shape[3], attention_mask.shape[3]
            )
            combined_mask = relative_position_bias + attention_mask
            attn_output = sdpa_attention_forward(
                query_states, key_states, value_states, combined_mask
            )
        else:
            attn_output = sdpa_attention_forward(
                query_states, key_states, value_states, relative_position_bias
            )
        attn_output = attn_output.reshape(*attn_output.shape[:2], -1)
        return self.o_proj(attn_output)


class SwinMLP(Module):
    config: SwinForImageClassificationConfig
    features: int
    dim: int

    def setup(self) -> None:
        init = nn.initializers.normal(self.config.initializer_range)
        dense: Any = partial(nn.Dense, kernel_init=init, **self.numerics)
        self.fc1 = dense(self.features)
        self.fc2 = dense(self.dim)

    def __call__(self, hidden_states: Array) -> Array:
        hidden_states = self.fc1(hidden_states)
        hidden_states = jax.nn.gelu(hidden_states, approximate=False)
        return self.fc2(hidden_states)


class SwinPatchMerging(Module):
    """Patch Merging Layer."""

    config: SwinForImageClassificationConfig

    def setup(self) -> None:
        init = nn.initializers.normal(self.config.initializer_range)
        self.reduction = nn.Dense(40, use_bias=False, kernel_init=init, **self.numerics)
        self.norm = nn.LayerNorm(epsilon=1e-5, use_fast_variance=False, **self.dtypes)

    def __call__(self, input_feature: Array) -> Array:
        input_feature = input_feature.reshape(
            input_feature.shape[0], 24, 24, input_feature.shape[2]
        )
        # Interleave rows and columns to produce [batch_size, height/2*width/2, 4*num_channels]
        input_feature_2 = input_feature[:, ::2]
        input_feature_3 = input_feature_2[..., ::2, :]
        input_feature = input_feature[:, 1::2]
        input_feature_4 = input_feature[..., ::2, :]
        input_feature_2 = input_feature_2[..., 1::2, :]
        input_feature = input_feature[..., 1::2, :]
        input_feature = jnp.concatenate(
            [input_feature_3, input_feature_4, input_feature_2, input_feature], axis=-1
        )
        input_feature = input_feature.reshape(input_feature.shape[0], -1, input_feature.shape[3])
        input_feature = self.norm(input_feature)
        return self.reduction(input_feature)


class SwinEmbeddings(Module):
    """Construct the patch and position embeddings."""

    config: SwinForImageClassificationConfig

    def setup(self) -> None:
        self.patch_embeddings = SwinPatchEmbeddings(self.config, **self.numerics)
        self.norm = nn.LayerNorm(epsilon=1e-5, use_fast_variance=False, **self.dtypes)

    def __call__(self, pixel_values: Array) -> Array:
        embeddings = self.patch_embeddings(pixel_values)
        return self.norm(embeddings)


class SwinLayer(Module):
    config: SwinForImageClassificationConfig
    hidden_size: int
    features: int
    dim: int
    with_attention: bool
    shift_size: int

    def setup(self) -> None:
        if self.with_attention:
            self.attention = SwinAttention(
                self.config,
                hidden_size=self.hidden_size,
                num_heads=self.config.num_heads[0],
                **self.numerics,
            )
        else:
            self.attention = SwinAttention(
                self.config,
                hidden_size=self.hidden_size,
                num_heads=self.config.num_heads[1],
                **self.numerics,
            )
        norm: Any = partial(
            nn.LayerNorm, epsilon=self.config.layer_norm_eps, use_fast_variance=False, **self.dtypes
        )
        self.layernorm_before = norm()
        self.layernorm_after = norm()
        self.mlp = SwinMLP(self.config, features=self.features, dim=self.dim, **self.numerics)
        if self.shift_size > 0 and (not self.with_attention):
            self.drop_path = nn.Dropout(0.10000000000000002, broadcast_dims=(1, 2))
        elif self.shift_size > 0:
            self.drop_path = nn.Dropout(0.03333333333333333, broadcast_dims=(1, 2))
        elif self.with_attention:
            self.drop_path = nn.Dropout(0.0, broadcast_dims=(1, 2))
        else:
            self.drop_path = nn.Dropout(0.06666666666666667, broadcast_dims=(1, 2))

    def __call__(self, hidden_states: Array, deterministic: bool = True) -> Array:
        if self.shift_size > 0:
            dtype = hidden_states.dtype
        shortcut = hidden_states
        hidden_states = self.layernorm_before(hidden_states)
        if self.with_attention:
            hidden_states_2 = hidden_states.reshape(
                hidden_states.shape[0], 24, 24, hidden_states.shape[2]
            )
            if self.shift_size > 0:
                hidden_states_2 = jnp.roll(hidden_states_2, (-2, -2), axis=(1, 2))
            hidden_states_windows = window_partition(hidden_states_2, self.config.window_size)
        else:
            hidden_states_2 = hidden_states.reshape(
                hidden_states.shape[0], 12, 12, hidden_states.shape[2]
            )
            if self.shift_size > 0:
                hidden_states_2 = jnp.roll(hidden_states_2, (-2, -2), axis=(1, 2))
            hidden_states_windows = window_partition_3(hidden_states_2, self.config.window_size)
        hidden_states_windows = hidden_states_windows.reshape(
            -1, self.config.window_size * self.config.window_size, hidden_states.shape[2]
        )
        if self.shift_size > 0:
            if self.with_attention:
                attn_mask = get_attn_mask(
                    self.config.window_size,
                    self.config.window_size * self.config.window_size,
                    dtype,
                )
            else:
                attn_mask = get_attn_mask_2(
                    self.config.window_size,
                    self.config.window_size * self.config.window_size,
                    dtype,
                )
            attention_output = self.attention(
                hidden_states_windows, attention_mask=attn_mask, batch_size=shortcut.shape[0]
            )
        else:
            attention_output = self.attention(hidden_states_windows)
        attention_windows = attention_output.reshape(
            -1, self.config.window_size, self.config.window_size, hidden_states.shape[2]
        )
        if self.with_attention:
            attention_windows = window_reverse(attention_windows, self.config.window_size)
        else:
            attention_windows = window_reverse_2(attention_windows, self.config.window_size)
        if self.shift_size > 0:
            hidden_states_2 = jnp.roll(attention_windows, (2, 2), axis=(1, 2))
            attention_windows = hidden_states_2.reshape(
                hidden_states_2.shape[0], hidden_states.shape[1], hidden_states.shape[2]
            )
        else:
            attention_windows = attention_windows.reshape(
                attention_windows.shape[0], hidden_states.shape[1], hidden_states.shape[2]
            )
        hidden_states = shortcut + self.drop_path(attention_windows, deterministic=deterministic)
        shortcut = hidden_states
        hidden_states = self.layernorm_after(hidden_states)
        hidden_states = self.mlp(hidden_states)
        return hidden_states + shortcut


class SwinStage(Module):
    config: SwinForImageClassificationConfig
    hidden_size: int
    features: int
    dim: int
    with_attention: bool
    has_downsample: bool

    def setup(self) -> None:
        swin_layer: Any = partial(
            SwinLayer,
            hidden_size=self.hidden_size,
            features=self.features,
            dim=self.dim,
            with_attention=self.with_attention,
            **self.numerics,
        )
        self.blocks = [swin_layer(self.config, shift_size=0), swin_layer(self.config, shift_size=2)]
        if self.has_downsample:
            self.downsample = SwinPatchMerging(self.config, **self.numerics)

    def __call__(self, hidden_states: Array, deterministic: bool = True) -> Array:
        for block in self.blocks:
            hidden_states = block(hidden_states, deterministic=deterministic)
        if self.has_downsample:
            hidden_states = self.downsample(hidden_states)
        return hidden_states


class SwinEncoder(Module):
    config: SwinForImageClassificationConfig

    def setup(self) -> None:
        swin_stage: Any = partial(SwinStage, **self.numerics)
        self.layers = [
            swin_stage(
                self.config,
                hidden_size=20,
                features=80,
                dim=20,
                with_attention=True,
                has_downsample=True,
            ),
            swin_stage(
                self.config,
                hidden_size=40,
                features=160,
                dim=40,
                with_attention=False,
                has_downsample=False,
            ),
        ]

    def __call__(self, hidden_states: Array, deterministic: bool = True) -> Array:
        for layer in self.layers:
            hidden_states = layer(hidden_states, deterministic=deterministic)
        return hidden_states


class SwinModel(Module):
    """The bare Swin Model outputting raw hidden-states without any specific head on top."""

    config: SwinForImageClassificationConfig

    def setup(self) -> None:
        self.embeddings = SwinEmbeddings(self.config, **self.numerics)
        self.encoder = SwinEncoder(self.config, **self.numerics)
        self.layernorm = nn.LayerNorm(
            epsilon=self.config.layer_norm_eps, use_fast_variance=False, **self.dtypes
        )

    def __call__(self, pixel_values: Array, deterministic: bool = True) -> Array:
        embedding_output = self.embeddings(pixel_values)
        encoder_outputs = self.encoder(embedding_output, deterministic=deterministic)
        sequence_output = self.layernorm(encoder_outputs)
        pooled_output = sequence_output.swapaxes(1, 2).mean(axis=-1, keepdims=True)
        return pooled_output.reshape(pooled_output.shape[0], -1)


class SwinForImageClassification(Module):
    """Swin Model transformer with an image classification head on top (a linear layer on top
    of the final hidden state of the [CLS] token) e.g. for ImageNet."""

    config: SwinForImageClassificationConfig

    def setup(self) -> None:
        self.swin = SwinModel(self.config, **self.numerics)
        init = nn.initializers.normal(self.config.initializer_range)
        self.classifier = nn.Dense(self.config.num_labels, kernel_init=init, **self.numerics)

    def __call__(self, pixel_values: Array, deterministic: bool = True) -> dict[str, Array]:
        outputs = self.swin(pixel_values, deterministic=deterministic)
        logits = self.classifier(outputs)
        return {"logits": logits}
