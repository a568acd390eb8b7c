"""The sizes of AutoencoderKLQwenImage."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AutoencoderKLQwenImageConfig:
    """The sizes of AutoencoderKLQwenImage."""

    z_dim: int = 4
    num_res_blocks: int = 1
    input_channels: int = 3
