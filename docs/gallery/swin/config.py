"""The sizes of SwinForImageClassification."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SwinForImageClassificationConfig:
    """The sizes of SwinForImageClassification."""

    patch_size: int = 4
    embed_dim: int = 20
    window_size: int = 4
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-05
    head_dim: int = 10
    num_labels: int = 10
