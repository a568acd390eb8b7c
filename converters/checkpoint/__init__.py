"""Checkpoints on disk: torch's, read lazily and without running code; Flax pytrees, both ways."""

from converters.checkpoint.open import open_checkpoint
from converters.checkpoint.pytree import (
    Format,
    Leaf,
    Pytree,
    flatten,
    load_pytree,
    nest,
    write_pytree,
)
from converters.checkpoint.reader import Checkpoint, TensorInfo
from converters.checkpoint.torch_file import StateDict

__all__ = [
    "Checkpoint",
    "Format",
    "Leaf",
    "Pytree",
    "StateDict",
    "TensorInfo",
    "flatten",
    "load_pytree",
    "nest",
    "open_checkpoint",
    "write_pytree",
]
