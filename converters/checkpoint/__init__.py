"""Checkpoints on disk: torch's, read lazily and without running code; what a Flax pytree is made of."""

from converters.checkpoint.cast import cast, nonfinite, overflows
from converters.checkpoint.lazy import LazyTensor
from converters.checkpoint.open import open_checkpoint
from converters.checkpoint.prefixes import Cleaned, clean
from converters.checkpoint.pytree import Format, Leaf, Pytree, flatten, nest
from converters.checkpoint.reader import Checkpoint, TensorInfo
from converters.checkpoint.state_dict import StateDict

__all__ = [
    "Checkpoint",
    "Cleaned",
    "Format",
    "LazyTensor",
    "Leaf",
    "Pytree",
    "StateDict",
    "TensorInfo",
    "cast",
    "clean",
    "flatten",
    "nest",
    "nonfinite",
    "open_checkpoint",
    "overflows",
]
