"""The sizes of SwinForImageClassification."""

from dataclasses import dataclass

# Numbers of entries: modeling.py has a place for so many.
LENGTHS = {
    "num_heads": 2,
}


@dataclass(frozen=True)
class SwinForImageClassificationConfig:
    """The sizes of SwinForImageClassification."""

    patch_size: int = 4
    embed_dim: int = 20
    num_heads: tuple[int, ...] = (2, 4)
    window_size: int = 4
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-5
    head_dim: int = 10
    num_labels: int = 10

    def __post_init__(self) -> None:
        """Refuse sizes that modeling.py does not follow."""
        for name, length in LENGTHS.items():
            if len(getattr(self, name)) != length:
                problem = f"{name}={getattr(self, name)!r}: modeling.py has a place for {length}"
                raise ValueError(f"{type(self).__name__}: {problem}; see 'Sizes' in README.md")
