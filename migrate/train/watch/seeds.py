"""Seed for scripts without any, so that all of their runs here have the same weights and batches.

A seed of the script's own comes later, and wins.
"""

from __future__ import annotations

import random

# torch gives it to each new generator; no script seeds with it.
_SEED = 67280421310721
UNSEEDED = (
    "the script does not seed torch, so each run has other weights; all runs here have one seed"
)


def seed_host() -> None:
    """Seed Python and NumPy, before the script's first line."""
    import numpy as np

    random.seed(_SEED)
    np.random.seed(_SEED % 2**32)


def seed_torch() -> None:
    """Seed torch, which the script has just imported."""
    import torch

    torch.manual_seed(_SEED)


def unseeded() -> bool:
    """Whether the script has not seeded torch until now."""
    import torch

    return torch.initial_seed() == _SEED
