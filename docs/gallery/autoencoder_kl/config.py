"""The sizes of AutoencoderKL."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AutoencoderKLConfig:
    """The sizes of AutoencoderKL."""

    norm_num_groups: int = 8
    block_out_channels: tuple[int, ...] = (16, 32)
    latent_channels: int = 4
