"""DiTTransformer2DModel in Flax, ported from diffusers.models.transformers.dit_transformer_2d."""

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

from .config import DiTTransformer2DConfig


def torch_uniform(key: Any, shape: Sequence[int], dtype: Any) -> Array:
    """torch's default for the weight of a Linear or a Conv: uniform within 1 / sqrt(fan_in)."""
    return nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")(key, shape, dtype)


def uniform_within(bound: float) -> nn.initializers.Initializer:
    """Draws between -bound and bound."""
    return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -bound, bound)


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


def get_timestep_embedding(timesteps: Array) -> Array:
    """This matches the implementation in Denoising Diffusion Probabilistic Models: Create
    sinusoidal timestep embeddings."""
    exponent = jnp.arange(128, dtype=jnp.float32) * -9.210340371976184
    exponent = exponent / 127
    emb = jnp.exp(exponent)
    emb = timesteps[..., None].astype(jnp.float32) * emb[None]
    # concat sine and cosine embeddings
    emb = jnp.concatenate([jnp.sin(emb), jnp.cos(emb)], axis=-1)
    return jnp.concatenate([emb[:, emb.shape[-1] // 2 :], emb[:, : emb.shape[-1] // 2]], axis=-1)


class Timesteps(nn.Module):
    def __call__(self, timesteps: Array) -> Array:
        return get_timestep_embedding(timesteps)


class PatchEmbed(Module):
    """2D Image to Patch Embedding with support for SD3 cropping."""

    config: DiTTransformer2DConfig

    def setup(self) -> None:
        self.pos_embed = self.variable(
            "buffers", "pos_embed", stored, self.path, "pos_embed", (1, 16, 32)
        ).value
        self.proj = nn.Conv(
            self.config.inner_dim,
            kernel_size=(2, 2),
            strides=(2, 2),
            padding="VALID",
            kernel_init=torch_uniform,
            bias_init=uniform_within((4 * 4) ** -0.5),
            **self.numerics,
        )

    def __call__(self, latent: Array) -> Array:
        dtype = latent.dtype
        latent = self.proj(jnp.moveaxis(latent, 1, -1))
        # BCHW -> BNC
        latent = latent.reshape(latent.shape[0], -1, latent.shape[-1])
        return (latent + self.pos_embed).astype(dtype)


class TimestepEmbedding(Module):
    config: DiTTransformer2DConfig

    def setup(self) -> None:
        dense: Any = partial(nn.Dense, kernel_init=torch_uniform, **self.numerics)
        self.linear_1 = dense(self.config.inner_dim, bias_init=uniform_within(256**-0.5))
        init = uniform_within(self.config.inner_dim**-0.5)
        self.linear_2 = dense(self.config.inner_dim, bias_init=init)

    def __call__(self, sample: Array) -> Array:
        sample = self.linear_1(sample)
        sample = jax.nn.silu(sample)
        return self.linear_2(sample)


class LabelEmbedding(Module):
    """Embeds class labels into vector representations."""

    config: DiTTransformer2DConfig

    def setup(self) -> None:
        self.embedding_table = nn.Embed(
            21, self.config.inner_dim, embedding_init=nn.initializers.normal(1.0), **self.dtypes
        )

    def __call__(self, labels: Array) -> Array:
        return self.embedding_table(labels)


class Attention(Module):
    """A cross attention layer."""

    config: DiTTransformer2DConfig

    def setup(self) -> None:
        init = uniform_within(self.config.inner_dim**-0.5)
        dense: Any = partial(nn.Dense, kernel_init=torch_uniform, bias_init=init, **self.numerics)
        self.to_q = dense(self.config.inner_dim)
        self.to_k = dense(self.config.inner_dim)
        self.to_v = dense(self.config.inner_dim)
        self.to_out = [dense(self.config.inner_dim)]

    def __call__(self, hidden_states: Array) -> Array:
        query = self.to_q(hidden_states)
        key = self.to_k(hidden_states)
        value = self.to_v(hidden_states)
        query = query.reshape(query.shape[0], -1, self.config.heads, 8)
        key_2 = key.reshape(key.shape[0], -1, self.config.heads, 8).swapaxes(1, 2)
        value = value.reshape(value.shape[0], -1, self.config.heads, key_2.shape[3])
        hidden_states = jax.nn.dot_product_attention(query, key_2.swapaxes(1, 2), value)
        hidden_states = hidden_states.reshape(hidden_states.shape[0], -1, key.shape[2])
        for to_out in self.to_out:
            # linear proj
            hidden_states = to_out(hidden_states)
        return hidden_states


class GELU(Module):
    """GELU activation function with tanh approximation support with `approximate="tanh"`."""

    config: DiTTransformer2DConfig

    def setup(self) -> None:
        init = uniform_within(self.config.inner_dim**-0.5)
        self.proj = nn.Dense(
            self.config.inner_dim * 4, kernel_init=torch_uniform, bias_init=init, **self.numerics
        )

    def __call__(self, hidden_states: Array) -> Array:
        hidden_states = self.proj(hidden_states)
        return jax.nn.gelu(hidden_states, approximate=True)


class CombinedTimestepLabelEmbeddings(Module):
    config: DiTTransformer2DConfig

    def setup(self) -> None:
        self.time_proj = Timesteps()
        self.timestep_embedder = TimestepEmbedding(self.config, **self.numerics)
        self.class_embedder = LabelEmbedding(self.config, **self.numerics)

    def __call__(self, timestep: Array, class_labels: Array, dtype: DTypeLike) -> Array:
        timesteps_proj = self.time_proj(timestep)
        # (N, D)
        timesteps_emb = self.timestep_embedder(timesteps_proj.astype(dtype))
        # (N, D)
        class_labels = self.class_embedder(class_labels)
        # (N, D)
        return timesteps_emb + class_labels


class FeedForward(Module):
    """A feed-forward layer."""

    config: DiTTransformer2DConfig

    def setup(self) -> None:
        init = uniform_within((self.config.inner_dim * 4) ** -0.5)
        self.net = [
            GELU(self.config, **self.numerics),
            nn.Dropout(0.0, deterministic=True),
            nn.Dense(
                self.config.inner_dim, kernel_init=torch_uniform, bias_init=init, **self.numerics
            ),
        ]

    def __call__(self, hidden_states: Array) -> Array:
        hidden_states = self.net[0](hidden_states)
        hidden_states = self.net[2](hidden_states)
        return hidden_states


class AdaLayerNormZero(Module):
    """Norm layer adaptive layer norm zero (adaLN-Zero)."""

    config: DiTTransformer2DConfig

    def setup(self) -> None:
        self.emb = CombinedTimestepLabelEmbeddings(self.config, **self.numerics)
        init = uniform_within(self.config.inner_dim**-0.5)
        self.linear = nn.Dense(
            6 * self.config.inner_dim, kernel_init=torch_uniform, bias_init=init, **self.numerics
        )
        self.norm = nn.LayerNorm(
            use_scale=False, use_bias=False, epsilon=1e-6, use_fast_variance=False, **self.dtypes
        )

    def __call__(
        self, x: Array, timestep: Array, class_labels: Array
    ) -> tuple[Array, Array, Array, Array, Array]:
        dtype = x.dtype
        emb = self.emb(timestep, class_labels, dtype)
        emb = self.linear(jax.nn.silu(emb))
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = jnp.split(emb, 6, axis=-1)
        x = self.norm(x) * (scale_msa[:, None] + 1) + shift_msa[:, None]
        return x, gate_msa, shift_mlp, scale_mlp, gate_mlp


class BasicTransformerBlock(Module):
    """A basic Transformer block."""

    config: DiTTransformer2DConfig

    def setup(self) -> None:
        self.norm1 = AdaLayerNormZero(self.config, **self.numerics)
        self.attn1 = Attention(self.config, **self.numerics)
        self.norm3 = nn.LayerNorm(
            use_scale=False, use_bias=False, epsilon=1e-5, use_fast_variance=False, **self.dtypes
        )
        self.ff = FeedForward(self.config, **self.numerics)

    def __call__(self, hidden_states: Array, timestep: Array, class_labels: Array) -> Array:
        norm_hidden_states, gate_msa, shift_mlp, scale_mlp, gate_mlp = self.norm1(
            hidden_states, timestep, class_labels
        )
        attn_output = self.attn1(norm_hidden_states)
        attn_output = gate_msa[:, None] * attn_output
        hidden_states = attn_output + hidden_states
        norm_hidden_states = self.norm3(hidden_states)
        norm_hidden_states = norm_hidden_states * (scale_mlp[:, None] + 1) + shift_mlp[:, None]
        ff_output = self.ff(norm_hidden_states)
        ff_output = gate_mlp[:, None] * ff_output
        return ff_output + hidden_states


class DiTTransformer2DModel(Module):
    """A 2D Transformer model as introduced in DiT (https://huggingface.co/papers/2212.09748)."""

    config: DiTTransformer2DConfig

    def setup(self) -> None:
        self.pos_embed = PatchEmbed(self.config, **self.numerics)
        self.transformer_blocks = [
            BasicTransformerBlock(self.config, **self.numerics) for _ in range(3)
        ]
        self.norm_out = nn.LayerNorm(
            use_scale=False, use_bias=False, epsilon=1e-6, use_fast_variance=False, **self.dtypes
        )
        init = uniform_within(self.config.inner_dim**-0.5)
        dense: Any = partial(nn.Dense, kernel_init=torch_uniform, bias_init=init, **self.numerics)
        self.proj_out_1 = dense(2 * self.config.inner_dim)
        self.proj_out_2 = dense(32)

    def __call__(
        self, hidden_states: Array, timestep: Array, class_labels: Array, deterministic: bool = True
    ) -> dict[str, Array]:
        if not deterministic:
            raise NotImplementedError(
                "training is not in this port: training and evaluation differ (embeddings.py:1239)"
            )
        dtype = hidden_states.dtype
        hidden_states_2 = self.pos_embed(hidden_states)
        for transformer_block in self.transformer_blocks:
            hidden_states_2 = transformer_block(hidden_states_2, timestep, class_labels)
        # 3. Output
        conditioning = self.transformer_blocks[0].norm1.emb(timestep, class_labels, dtype)
        shift, scale = jnp.split(self.proj_out_1(jax.nn.silu(conditioning)), 2, axis=-1)
        hidden_states_2 = self.norm_out(hidden_states_2) * (scale[:, None] + 1) + shift[:, None]
        hidden_states_2 = self.proj_out_2(hidden_states_2)
        hidden_states = hidden_states_2.reshape(
            -1, hidden_states.shape[1], hidden_states.shape[1], 2, 2, self.config.out_channels
        )
        hidden_states = jnp.einsum("nhwpqc->nchpwq", hidden_states)
        output = hidden_states.reshape(
            -1, self.config.out_channels, self.config.out_channels, self.config.out_channels
        )
        return {"sample": output}
