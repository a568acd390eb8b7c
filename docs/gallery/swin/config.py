"""The sizes of SwinForImageClassification."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SwinForImageClassificationConfig:
    """The sizes of SwinForImageClassification."""

    embed_dim: int = 20
    patch_size: int = 4
    initializer_range: float = 0.02
    window_size: int = 4
    head_dim: int = 10
    layer_norm_eps: float = 1e-05
    num_labels: int = 10
