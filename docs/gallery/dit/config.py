"""The sizes of DiTTransformer2DModel."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DiTTransformer2DConfig:
    """The sizes of DiTTransformer2DModel."""

    out_channels: int = 8
    inner_dim: int = 32
    heads: int = 4
