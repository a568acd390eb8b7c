"""Seed the random generators of both sides of a proof in the same way."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from migrate.prove.settings import SEED
from shims import activate


def install() -> None:
    """Seed now, and again just before the function of each spawned worker, after its imports."""
    seed_generators()
    spawn: Any = sys.modules["torch.multiprocessing.spawn"]
    spawn._wrap = _after_seeding(spawn._wrap)
    activate.after_import("torch_xla", _seed_xla_workers)


def _seed_xla_workers() -> None:
    from torch_xla._internal import pjrt

    pjrt._SpawnFn.__call__ = _after_seeding(pjrt._SpawnFn.__call__)


def seed_generators() -> None:
    """Seed Python's, numpy's and torch's generators with `SEED`."""
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)


def _after_seeding(function: Callable[..., Any]) -> Callable[..., Any]:
    # `wraps` keeps the name by which a spawned process finds the function.
    @functools.wraps(function)
    def seeded(*args: Any, **kwargs: Any) -> Any:
        seed_generators()
        return function(*args, **kwargs)

    return seeded
