"""The sizes of DiTTransformer2DModel."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DiTTransformer2DConfig:
    """The sizes of DiTTransformer2DModel."""

    num_attention_heads: int = 4
    attention_head_dim: int = 8
    patch_size: int = 2
    dropout: float = 0.0
    inner_dim: int = 32
    norm_eps: float = 1e-05
    num_layers: int = 3
    out_channels: int = 8
