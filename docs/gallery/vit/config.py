"""The sizes of ViTForImageClassification."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ViTForImageClassificationConfig:
    """The sizes of ViTForImageClassification."""

    hidden_size: int = 32
    num_hidden_layers: int = 3
    num_attention_heads: int = 4
    intermediate_size: int = 64
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    image_size: int = 32
    patch_size: int = 8
    num_labels: int = 10
