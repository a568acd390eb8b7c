"""The sizes of CLIPTextModelWithProjection."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CLIPTextModelWithProjectionConfig:
    """The sizes of CLIPTextModelWithProjection."""

    vocab_size: int = 128
    hidden_size: int = 32
    intermediate_size: int = 64
    projection_dim: int = 24
    num_hidden_layers: int = 3
    num_attention_heads: int = 4
    max_position_embeddings: int = 20
    layer_norm_eps: float = 1e-5
    initializer_factor: float = 1.0
