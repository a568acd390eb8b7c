"""The sizes of Dinov2Model."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Dinov2Config:
    """The sizes of Dinov2Model."""

    hidden_size: int = 32
    num_hidden_layers: int = 3
    num_attention_heads: int = 4
    mlp_ratio: int = 4
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-6
    image_size: int = 32
    patch_size: int = 8
