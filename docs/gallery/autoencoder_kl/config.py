"""The sizes of AutoencoderKL."""

from dataclasses import dataclass

# Numbers of entries: modeling.py has a place for so many.
LENGTHS = {
    "block_out_channels": 2,
}


@dataclass(frozen=True)
class AutoencoderKLConfig:
    """The sizes of AutoencoderKL."""

    in_channels: int = 3
    block_out_channels: tuple[int, ...] = (16, 32)
    latent_channels: int = 4
    norm_num_groups: int = 8
    encoder_channels: int = 16
    decoder_channels: int = 32

    def __post_init__(self) -> None:
        """Refuse sizes that modeling.py does not follow."""
        for name, length in LENGTHS.items():
            if len(getattr(self, name)) != length:
                problem = f"{name}={getattr(self, name)!r}: modeling.py has a place for {length}"
                raise ValueError(f"{type(self).__name__}: {problem}; see 'Sizes' in README.md")
