"""The sizes of CLIPVisionModelWithProjection."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CLIPVisionModelWithProjectionConfig:
    """The sizes of CLIPVisionModelWithProjection."""

    hidden_size: int = 32
    intermediate_size: int = 64
    projection_dim: int = 24
    num_hidden_layers: int = 3
    num_attention_heads: int = 4
    image_size: int = 32
    patch_size: int = 8
    layer_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    initializer_factor: float = 1.0
