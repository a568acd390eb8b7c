"""DiTTransformer2DModel in Flax, ported from diffusers.models.transformers.dit_transformer_2d."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn

from .config import DiTTransformer2DConfig


def get_timestep_embedding(timesteps: jax.Array) -> jax.Array:
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
    def __call__(self, timesteps: jax.Array) -> jax.Array:
        return get_timestep_embedding(timesteps)


class PatchEmbed(nn.Module):
    """2D Image to Patch Embedding with support for SD3 cropping."""

    config: DiTTransformer2DConfig

    def setup(self) -> None:
        self.pos_embed = self.variable("buffers", "pos_embed", jnp.zeros, (1, 16, 32)).value
        self.proj = nn.Conv(
            self.config.inner_dim, kernel_size=(2, 2), strides=(2, 2), padding="VALID"
        )

    def __call__(self, latent: jax.Array) -> jax.Array:
        latent = self.proj(jnp.moveaxis(latent, 1, -1))
        latent = latent.reshape(latent.shape[0], -1, latent.shape[-1])
        return latent + self.pos_embed


class TimestepEmbedding(nn.Module):
    config: DiTTransformer2DConfig

    def setup(self) -> None:
        self.linear_1 = nn.Dense(self.config.inner_dim)
        self.linear_2 = nn.Dense(self.config.inner_dim)

    def __call__(self, sample: jax.Array) -> jax.Array:
        sample = self.linear_1(sample)
        sample = jax.nn.silu(sample)
        return self.linear_2(sample)


class LabelEmbedding(nn.Module):
    """Embeds class labels into vector representations."""

    config: DiTTransformer2DConfig

    def setup(self) -> None:
        self.embedding_table = nn.Embed(21, self.config.inner_dim)

    def __call__(self, labels: jax.Array) -> jax.Array:
        return self.embedding_table(labels)


class Attention(nn.Module):
    """A cross attention layer."""

    config: DiTTransformer2DConfig

    def setup(self) -> None:
        self.to_q = nn.Dense(self.config.inner_dim)
        self.to_k = nn.Dense(self.config.inner_dim)
        self.to_v = nn.Dense(self.config.inner_dim)
        self.to_out = [nn.Dense(self.config.inner_dim)]

    def __call__(self, hidden_states: jax.Array) -> jax.Array:
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


class GELU(nn.Module):
    """GELU activation function with tanh approximation support with `approximate="tanh"`."""

    config: DiTTransformer2DConfig

    def setup(self) -> None:
        self.proj = nn.Dense(self.config.inner_dim * 4)

    def __call__(self, hidden_states: jax.Array) -> jax.Array:
        hidden_states = self.proj(hidden_states)
        return jax.nn.gelu(hidden_states, approximate=True)


class CombinedTimestepLabelEmbeddings(nn.Module):
    config: DiTTransformer2DConfig

    def setup(self) -> None:
        self.time_proj = Timesteps()
        self.timestep_embedder = TimestepEmbedding(self.config)
        self.class_embedder = LabelEmbedding(self.config)

    def __call__(self, timestep: jax.Array, class_labels: jax.Array) -> jax.Array:
        timesteps_proj = self.time_proj(timestep)
        # (N, D)
        timesteps_emb = self.timestep_embedder(timesteps_proj)
        # (N, D)
        class_labels = self.class_embedder(class_labels)
        # (N, D)
        return timesteps_emb + class_labels


class FeedForward(nn.Module):
    """A feed-forward layer."""

    config: DiTTransformer2DConfig

    def setup(self) -> None:
        self.net = [
            GELU(self.config),
            nn.Dropout(0.0, deterministic=True),
            nn.Dense(self.config.inner_dim),
        ]

    def __call__(self, hidden_states: jax.Array) -> jax.Array:
        hidden_states = self.net[0](hidden_states)
        hidden_states = self.net[2](hidden_states)
        return hidden_states


class AdaLayerNormZero(nn.Module):
    """Norm layer adaptive layer norm zero (adaLN-Zero)."""

    config: DiTTransformer2DConfig

    def setup(self) -> None:
        self.emb = CombinedTimestepLabelEmbeddings(self.config)
        self.linear = nn.Dense(6 * self.config.inner_dim)
        self.norm = nn.LayerNorm(
            use_scale=False, use_bias=False, epsilon=1e-06, use_fast_variance=False
        )

    def __call__(
        self, x: jax.Array, timestep: jax.Array, class_labels: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
        emb = self.emb(timestep, class_labels)
        emb = self.linear(jax.nn.silu(emb))
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = jnp.split(emb, 6, axis=-1)
        x = self.norm(x) * (scale_msa[:, None] + 1) + shift_msa[:, None]
        return x, gate_msa, shift_mlp, scale_mlp, gate_mlp


class BasicTransformerBlock(nn.Module):
    """A basic Transformer block."""

    config: DiTTransformer2DConfig

    def setup(self) -> None:
        self.norm1 = AdaLayerNormZero(self.config)
        self.attn1 = Attention(self.config)
        self.norm3 = nn.LayerNorm(
            use_scale=False, use_bias=False, epsilon=1e-05, use_fast_variance=False
        )
        self.ff = FeedForward(self.config)

    def __call__(
        self, hidden_states: jax.Array, timestep: jax.Array, class_labels: jax.Array
    ) -> jax.Array:
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


class DiTTransformer2DModel(nn.Module):
    """A 2D Transformer model as introduced in DiT (https://huggingface.co/papers/2212.09748)."""

    config: DiTTransformer2DConfig

    def setup(self) -> None:
        self.pos_embed = PatchEmbed(self.config)
        self.transformer_blocks = [BasicTransformerBlock(self.config) for _ in range(3)]
        self.norm_out = nn.LayerNorm(
            use_scale=False, use_bias=False, epsilon=1e-06, use_fast_variance=False
        )
        self.proj_out_1 = nn.Dense(2 * self.config.inner_dim)
        self.proj_out_2 = nn.Dense(32)

    def __call__(
        self, hidden_states: jax.Array, timestep: jax.Array, class_labels: jax.Array
    ) -> dict[str, jax.Array]:
        hidden_states_2 = self.pos_embed(hidden_states)
        for transformer_block in self.transformer_blocks:
            hidden_states_2 = transformer_block(hidden_states_2, timestep, class_labels)
        # 3. Output
        conditioning = self.transformer_blocks[0].norm1.emb(timestep, class_labels)
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
