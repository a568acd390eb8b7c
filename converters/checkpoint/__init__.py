"""Checkpoints on disk: torch checkpoints, read lazily without running code, and the arrays of a Flax
pytree."""

from converters.checkpoint.cast import cast, nonfinite, overflows
from converters.checkpoint.lazy import LazyTensor
from converters.checkpoint.open import open_checkpoint
from converters.checkpoint.prefixes import Cleaned, clean
from converters.checkpoint.pytree import Format, Pytree, PytreeLeaf, flatten, nest
from converters.checkpoint.reader import Checkpoint, TensorInfo
from converters.checkpoint.state_dict import StateDict

__all__ = [
    "Checkpoint",
    "Cleaned",
    "Format",
    "LazyTensor",
    "Pytree",
    "PytreeLeaf",
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
