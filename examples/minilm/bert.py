"""A BERT encoder in flax.linen.

Attributes are named as in transformers' torch model, so a converted checkpoint is its variables as
it is. Inference only: no dropout.
"""

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class BertConfig:
    """The sizes of a BERT encoder, named as in a Hugging Face `config.json`."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_hidden_layers: int
    vocab_size: int
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12


def layer_norm(config: BertConfig) -> nn.LayerNorm:
    # Flax's fast variance, E[x²] - E[x]², loses digits where the mean is large.
    return nn.LayerNorm(epsilon=config.layer_norm_eps, use_fast_variance=False)


class Embeddings(nn.Module):
    config: BertConfig

    def setup(self) -> None:
        config = self.config
        self.word_embeddings = nn.Embed(config.vocab_size, config.hidden_size)
        self.position_embeddings = nn.Embed(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embed(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = layer_norm(config)

    def __call__(self, input_ids: jax.Array, token_type_ids: jax.Array) -> jax.Array:
        """(batch, length) ids → (batch, length, hidden)."""
        positions = jnp.arange(input_ids.shape[-1])
        return self.LayerNorm(
            self.word_embeddings(input_ids)
            + self.token_type_embeddings(token_type_ids)
            + self.position_embeddings(positions)
        )


class SelfAttention(nn.Module):
    config: BertConfig

    def setup(self) -> None:
        self.query = nn.Dense(self.config.hidden_size)
        self.key = nn.Dense(self.config.hidden_size)
        self.value = nn.Dense(self.config.hidden_size)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """(batch, length, hidden), mask (batch, 1, 1, length) of True where to attend."""
        heads = self.config.num_attention_heads

        def split(y: jax.Array) -> jax.Array:
            return y.reshape(*y.shape[:-1], heads, y.shape[-1] // heads)

        mixed = nn.dot_product_attention(
            split(self.query(x)), split(self.key(x)), split(self.value(x)), mask=mask
        )
        return mixed.reshape(x.shape)


class ResidualOutput(nn.Module):
    """A projection, added to what came in before the block, then normalized."""

    config: BertConfig

    def setup(self) -> None:
        self.dense = nn.Dense(self.config.hidden_size)
        self.LayerNorm = layer_norm(self.config)

    def __call__(self, x: jax.Array, residual: jax.Array) -> jax.Array:
        return self.LayerNorm(self.dense(x) + residual)


class Attention(nn.Module):
    config: BertConfig

    def setup(self) -> None:
        self.self = SelfAttention(self.config)
        self.output = ResidualOutput(self.config)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        return self.output(self.self(x, mask), x)


class Intermediate(nn.Module):
    config: BertConfig

    def setup(self) -> None:
        self.dense = nn.Dense(self.config.intermediate_size)

    def __call__(self, x: jax.Array) -> jax.Array:
        # BERT uses the exact (erf) form; Flax's default is the tanh approximation, 2e-4 off.
        return nn.gelu(self.dense(x), approximate=False)


class Layer(nn.Module):
    config: BertConfig

    def setup(self) -> None:
        self.attention = Attention(self.config)
        self.intermediate = Intermediate(self.config)
        self.output = ResidualOutput(self.config)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        x = self.attention(x, mask)
        return self.output(self.intermediate(x), x)


class Encoder(nn.Module):
    config: BertConfig

    def setup(self) -> None:
        self.layer = [Layer(self.config) for _ in range(self.config.num_hidden_layers)]

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        for layer in self.layer:
            x = layer(x, mask)
        return x


class Pooler(nn.Module):
    config: BertConfig

    def setup(self) -> None:
        self.dense = nn.Dense(self.config.hidden_size)

    def __call__(self, x: jax.Array) -> jax.Array:
        """(batch, length, hidden) → (batch, hidden), from the first token."""
        return nn.tanh(self.dense(x[:, 0]))


class Bert(nn.Module):
    config: BertConfig

    def setup(self) -> None:
        self.embeddings = Embeddings(self.config)
        self.encoder = Encoder(self.config)
        self.pooler = Pooler(self.config)

    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array,
        token_type_ids: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Encode a padded batch.

        Args:
            input_ids: (batch, length) token ids.
            attention_mask: (batch, length), 1 for a token and 0 for padding.
            token_type_ids: (batch, length) segment ids; None for one segment.

        Returns:
            the last hidden states (batch, length, hidden) and the pooled output (batch, hidden).
        """
        if token_type_ids is None:
            token_type_ids = jnp.zeros_like(input_ids)
        mask = attention_mask[:, None, None, :].astype(bool)
        hidden = self.encoder(self.embeddings(input_ids, token_type_ids), mask)
        return hidden, self.pooler(hidden)
