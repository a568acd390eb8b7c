"""The sizes of SiglipVisionModel."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SiglipVisionConfig:
    """The sizes of SiglipVisionModel."""

    image_size: int = 32
    patch_size: int = 8
    hidden_size: int = 32
    num_attention_heads: int = 4
    intermediate_size: int = 64
    layer_norm_eps: float = 1e-06
    num_hidden_layers: int = 3
