"""The sizes of ConvNextForImageClassification."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ConvNextForImageClassificationConfig:
    """The sizes of ConvNextForImageClassification."""

    hidden_sizes: tuple[int, ...] = (8, 12, 16, 20)
    patch_size: int = 4
    layer_norm_eps: float = 1e-12
    num_labels: int = 10
