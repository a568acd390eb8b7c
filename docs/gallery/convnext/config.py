"""The sizes of ConvNextForImageClassification."""

from dataclasses import dataclass

# Numbers of entries: modeling.py has a place for so many.
LENGTHS = {
    "hidden_sizes": 4,
    "depths": 4,
}


@dataclass(frozen=True)
class ConvNextForImageClassificationConfig:
    """The sizes of ConvNextForImageClassification."""

    patch_size: int = 4
    hidden_sizes: tuple[int, ...] = (8, 12, 16, 20)
    depths: tuple[int, ...] = (2, 2, 3, 2)
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    layer_scale_init_value: float = 1e-6
    num_labels: int = 10

    def __post_init__(self) -> None:
        """Refuse sizes that modeling.py does not follow."""
        for name, length in LENGTHS.items():
            if len(getattr(self, name)) != length:
                problem = f"{name}={getattr(self, name)!r}: modeling.py has a place for {length}"
                raise ValueError(f"{type(self).__name__}: {problem}; see 'Sizes' in README.md")
