"""The sizes of AutoencoderKLQwenImage."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AutoencoderKLQwenImageConfig:
    """The sizes of AutoencoderKLQwenImage."""

    input_channels: int = 3
    z_dim: int = 4
