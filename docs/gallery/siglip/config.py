"""The sizes of SiglipVisionModel."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SiglipVisionConfig:
    """The sizes of SiglipVisionModel."""

    hidden_size: int = 32
    intermediate_size: int = 64
    num_hidden_layers: int = 3
    num_attention_heads: int = 4
    image_size: int = 32
    patch_size: int = 8
    layer_norm_eps: float = 1e-6
